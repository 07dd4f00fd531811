"""Storage pass: choose texture or buffer for each tensor between primary functions."""
