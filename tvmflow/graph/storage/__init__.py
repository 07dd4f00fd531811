"""The storage pass: texture or buffer for each tensor between primary functions."""
