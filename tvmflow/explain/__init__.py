"""Explanations of a network on a device: analyses, profiles, scaling, and the kernel lab."""
