"""Groups of devices: one model each."""
