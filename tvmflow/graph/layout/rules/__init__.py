"""How single operators are rewritten to the blocked layout.

A rule gets the pass and the old call.  It returns a :class:`Result`; or ``LATER`` for a
call that is computed in the plain layout if and when something reads it; or ``None`` to
decline: the operator then reads and writes plain tensors.
"""

from __future__ import annotations

from . import convolution, dense, elementwise, grid_sample, moving, normalization, reduction, resize
from .result import Later, Result, Rule

RULES: dict[str, Rule] = {
    **convolution.RULES,
    **dense.RULES,
    **elementwise.RULES,
    **grid_sample.RULES,
    **moving.RULES,
    **normalization.RULES,
    **reduction.RULES,
    **resize.RULES,
}

__all__ = ["RULES", "Later", "Result", "Rule"]
