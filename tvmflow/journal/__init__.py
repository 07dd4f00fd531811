"""Tuning journals: measurements in append-only binary files with an index.

`records` defines the contents, `encoding` and `frames` the bytes in the file, and `journal` opens a
file.
"""
