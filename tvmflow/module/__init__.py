"""Compiled networks: the module file; how it is linked, written, read, loaded and run."""
