"""Generation of machine code from scheduled primary functions: TIR passes and source rewrites.

`tir_pipeline` lists the passes in order; each of our own is in a separate file.
"""
