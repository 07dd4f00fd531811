"""From scheduled primary functions to machine code: passes on TIR, and what is done to source.

`tir_pipeline` has the list of the passes in order; each of ours is a file of its own.
"""
