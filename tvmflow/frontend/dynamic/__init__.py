"""Sizes known at run time: rewrites nodes to nodes on tensors of a static extent.

A *bounded* value has an axis of which only the first elements count.  Their number is computed in
the network, an int64 scalar; the extent, which kernels and memory have, is its bound.  Elements
behind are anything, so that most operators take them along unseen.  Where an operator would mix
them in, they are replaced by what changes nothing, or the node is refused::

    before  NonZero(mask) = p : int64[1, ?]            ReduceMax(Gather(x, p))
    after   Compaction(mask) = p : int32[n], count     ReduceMax(Where(i < count, Gather(x, p), -∞))

Each file has rules: what becomes of operators that read such values, or make some.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module

from .rewriter import MAKERS, RULES, RunTimeSizes

__all__ = ["MAKERS", "RULES", "RunTimeSizes"]

for _module in pkgutil.iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
