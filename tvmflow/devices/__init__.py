"""What is compiled for: targets, presets of devices with their limits, hosts, precisions."""
