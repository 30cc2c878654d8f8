"""One model for all devices."""
