"""Settings of other methods, chosen on validation rows."""
