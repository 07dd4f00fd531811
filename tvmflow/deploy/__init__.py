"""Deployment: the module file, how it is linked, and how it is loaded and run."""
