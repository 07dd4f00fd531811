"""Facts of machines to compile for: targets, presets of devices, hosts, precisions."""
