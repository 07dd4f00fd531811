"""Softmax and log-softmax along one axis, stable for any finite input.

For each row along the axis::

    m = max_k x[k]     s = sum_k exp(x[k] - m)
    softmax: y[k] = exp(x[k] - m) / s          log-softmax: y[k] = x[k] - m - log(s)
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from tvm import te, tirx

from . import row_reduction
from .common import FAMILY, ROLE
from .definitions import exponential
from .row_reduction import AXES, CONSTRAINTS, ROW, Knobs, Shape, heuristic, space

NAME = "softmax"
ORDER = 510


def compute(x: te.Tensor, axis: int, log: bool) -> te.Tensor:
    """Return the softmax of ``x`` along ``axis`` as TE; the shape is that of ``x``."""
    extents = [d for a, d in enumerate(x.shape) if a != axis]

    def at(index: Sequence[tirx.Expr], k: tirx.Expr) -> list[tirx.Expr]:
        return [*index[:axis], k, *index[axis:]]

    k = te.reduce_axis((0, x.shape[axis]), name="k")
    j = te.reduce_axis((0, x.shape[axis]), name="j")
    peak = te.compute(
        extents or (1,),
        lambda *r: te.max(x(*at(r if extents else (), k)), axis=k),
        name="peak",
        attrs={ROLE: ROW},
    )

    def shifted(r: Sequence[tirx.Expr], at_k: tirx.Expr) -> tirx.Expr:
        return x(*at(r, at_k)) - peak(*(r or (0,)))

    total = te.compute(
        extents or (1,),
        lambda *r: te.sum(exponential(shifted(r if extents else (), j)), axis=j),
        name="total",
        attrs={ROLE: ROW},
    )

    def body(*index: tirx.Expr) -> tirx.Expr:
        row = [i for a, i in enumerate(index) if a != axis]
        value = shifted(row, index[axis])
        denominator = total(*(row or (0,)))
        return value - tirx.log(denominator) if log else exponential(value) / denominator

    return te.compute(x.shape, body, name="softmax", attrs={FAMILY: NAME, AXES: str(axis)})


# It has the knobs of all functions of rows.
match = partial(row_reduction.match, family=NAME)
apply = partial(row_reduction.apply, family=NAME)

__all__ = ["CONSTRAINTS", "Knobs", "Shape", "heuristic", "space"]
