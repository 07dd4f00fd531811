"""Shared vocabulary of the passes: tensors, scopes, layouts, signatures, names, expressions.

`rewriter` rewrites Relax programs; all graph passes are built on it.
"""
