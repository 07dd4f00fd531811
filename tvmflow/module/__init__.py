"""Compiled networks: the module file, and linking, writing, reading, loading and running it."""
