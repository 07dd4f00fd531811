"""What is compiled: the module file, how it is linked, written and read, loaded and run."""
