"""The vocabulary of the passes: tensors, memory scopes, layouts, signatures, names, expressions.

It has the one rewriter of Relax programs.
"""
