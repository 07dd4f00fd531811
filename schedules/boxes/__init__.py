"""Families of custom operators on boxes, which write their kernels loop by loop.

:mod:`.per_box` computes boxes from boxes, :mod:`.masked_mean` a mean over the valid boxes; both
write statements with the :mod:`.builder`.
"""

from __future__ import annotations

from .builder import arithmetic
from .per_box import compute, compute_rows

__all__ = ["arithmetic", "compute", "compute_rows"]
