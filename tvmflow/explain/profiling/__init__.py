"""Profiles: a network's time, measured, counted, and compared with the device's ceilings."""
