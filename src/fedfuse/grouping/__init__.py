"""How groups are found without a parameter."""
