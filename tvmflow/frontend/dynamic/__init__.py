"""Bounded dynamic shapes: rewrites of nodes to nodes on tensors of a static extent.

A *bounded* value has an axis of which only the first elements are valid.  Their number, the *size*,
is an int64 scalar that the network computes; the extent, for which kernels and memory are planned,
is its upper bound.  The elements after them are unspecified, so most operators can process them
without care.  If an operator would mix them into valid ones, they are replaced by a neutral value,
or the node is refused::

    before  NonZero(mask) = p : int64[1, ?]            ReduceMax(Gather(x, p))
    after   Compaction(mask) = p : int32[n], count     ReduceMax(Where(i < count, Gather(x, p), -∞))

Each file has the rules for a family of operators that read or produce bounded values.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module

from .rewriter import MAKERS, RULES, RunTimeSizes

__all__ = ["MAKERS", "RULES", "RunTimeSizes"]

for _module in pkgutil.iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
