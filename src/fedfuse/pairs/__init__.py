"""The server's pair state, and every way to keep it."""
