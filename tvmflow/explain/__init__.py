"""What a network does with a device: analyses, profiles, scaling, and the kernel lab."""
