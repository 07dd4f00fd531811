"""A network's time: measured, counted, and against what the device can do."""
