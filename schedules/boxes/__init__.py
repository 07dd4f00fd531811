"""Functions of boxes: the families of custom operators, whose kernels are written loop by loop.

:mod:`.per_box` computes boxes from boxes, :mod:`.masked_mean` a mean over those that are valid;
both write statements with the :mod:`.builder`.
"""

from __future__ import annotations

from .builder import arithmetic
from .per_box import compute, compute_rows

__all__ = ["arithmetic", "compute", "compute_rows"]
