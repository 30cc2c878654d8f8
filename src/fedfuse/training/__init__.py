"""The one loop, and what it needs."""
