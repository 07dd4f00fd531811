"""Machines to compile for: targets, device presets, GPUs, hosts and precisions."""
