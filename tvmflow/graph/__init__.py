"""Passes on Relax, from the imported graph to calls with planned memory."""
