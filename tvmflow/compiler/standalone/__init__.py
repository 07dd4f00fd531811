"""The export of a standalone library; :mod:`.export` lists its steps."""
