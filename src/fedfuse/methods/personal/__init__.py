"""Personal models: one for each device, helped by the others."""
