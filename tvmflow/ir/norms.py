"""Normalisation as one Relax operator, without scale and bias."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import relax
from tvm.relax import op as R

from .rewriter import constant, shape_of


def normalized(
    x: relax.Expr, axes: Sequence[int], epsilon: float, *, centred: bool
) -> relax.Call | None:
    """Return (x - mean) / sqrt(variance + epsilon), or x / sqrt(mean square + epsilon).

    ``None`` where TVM cannot legalize it: without a mean over all axes.
    """
    row = [shape_of(x)[axis] for axis in axes]
    ones = constant(np.ones(row, np.float32))
    if centred:
        return R.nn.layer_norm(x, ones, constant(np.zeros(row, np.float32)), list(axes), epsilon)
    if len(axes) == len(shape_of(x)):
        return None
    return R.nn.rms_norm(x, ones, list(axes), epsilon)
