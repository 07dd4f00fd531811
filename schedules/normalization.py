"""Normalisation of rows (of layers, instances, groups), with or without subtracting their mean.

For each row of ``L`` elements, spanned by ``axes``::

    t = sum_k x[k]     q = sum_k (x[k] - t / L)^2     y[k] = (x[k] - t / L) / sqrt(q / L + epsilon)

The second pass over the row keeps the variance accurate even if it is small relative to the mean.
RMS normalisation has no mean::

    q = sum_k x[k]^2                                  y[k] = x[k] / sqrt(q / L + epsilon)

Scale and bias are elementwise operators, which are fused into the epilogue.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod

from tvm import te, tirx

from . import row_reduction
from .common import FAMILY, ROLE
from .row_reduction import AXES, CONSTRAINTS, ROW, Knobs, Shape, heuristic, space

NAME = "normalization"
ORDER = 520


def compute(x: te.Tensor, axes: Sequence[int], epsilon: float, centred: bool) -> te.Tensor:
    """Return ``x`` normalised over ``axes`` as TE; the shape is that of ``x``."""
    extents = [d for a, d in enumerate(x.shape) if a not in axes]
    length = prod(int(x.shape[a]) for a in axes)

    def statistic(name, value):  # type: ignore[no-untyped-def]
        """Sum a function of the row's index and an element's over a row."""
        over = {a: te.reduce_axis((0, x.shape[a]), name=f"k{a}") for a in axes}

        def body(*row: tirx.Expr) -> tirx.Expr:
            places = iter(row)
            index = [over[a] if a in over else next(places) for a in range(len(x.shape))]
            return te.sum(value(row if extents else (0,), index), axis=list(over.values()))

        return te.compute(extents or (1,), body, name=name, attrs={ROLE: ROW})

    if centred:
        total = statistic("total", lambda row, index: x(*index))

    def shifted(row: Sequence[tirx.Expr], index: Sequence[tirx.Expr]) -> tirx.Expr:
        return x(*index) - total(*row) * (1.0 / length) if centred else x(*index)

    squares = statistic("squares", lambda row, index: shifted(row, index) * shifted(row, index))

    def normal(*index: tirx.Expr) -> tirx.Expr:
        row = [i for a, i in enumerate(index) if a not in axes] or [0]
        variance = squares(*row) * (1.0 / length)
        return shifted(row, index) * (1.0 / tirx.sqrt(variance + epsilon))

    attrs = {FAMILY: NAME, AXES: ",".join(map(str, axes))}
    return te.compute(x.shape, normal, name="normal", attrs=attrs)


# It has the knobs of all functions of rows.
match = partial(row_reduction.match, family=NAME)
apply = partial(row_reduction.apply, family=NAME)

__all__ = ["CONSTRAINTS", "Knobs", "Shape", "heuristic", "space"]
