"""Journals of tuning: what was measured, in append-only binary files with an index.

`records` says what a journal holds, `encoding` and `frames` how it lies in the file, and `journal`
opens one.
"""
