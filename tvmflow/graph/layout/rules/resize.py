"""Resizes, as weighted sums of a few neighbours along rows and columns."""

from __future__ import annotations

import numpy as np
from tvm import relax

from ....ir.rewriter import constant_array, shape_of
from ....schedules import resize
from ....schedules.resize import linear_taps, relax_nearest, relax_positions, without_zeros
from ..rule import Layout, Result, rule

#: Weights of one element of a resize that are multiplied without a loop.
MOST_TAPS = 8

#: Places and weights of an axis, both of shape (result, taps).
Table = tuple[np.ndarray, np.ndarray]


@rule("relax.image.resize2d")
def resize_rule(layout: Layout, call: relax.Call) -> Result | None:
    """Bilinear and nearest resizes of Relax's operator, blocked or plain."""
    x, attrs = call.args[0], call.attrs
    if attrs.layout != "NCHW" or str(call.ty.dtype) != "float32":
        return None
    tables = {}
    for axis in (2, 3):
        size, result = shape_of(x)[axis], shape_of(call)[axis]
        positions = relax_positions(size, result, attrs.coordinate_transformation_mode)
        if attrs.method == "linear":
            table = linear_taps(positions, size)
        elif attrs.method == "nearest_neighbor":
            places = relax_nearest(positions, attrs.rounding_method)[:, None]
            table = places.clip(0, size - 1), np.ones(places.shape)
        else:
            return None
        if size != result or (table[0][:, 0] != np.arange(size)).any():
            tables[axis] = table
    return _emit(layout, x, tables)


def mix_rule(layout: Layout, call: relax.Call) -> Result | None:
    """A product with a sparse matrix along rows or columns: what cubic resizes are.

    Elements that a resize does not mix are not read, as zero times NaN is NaN.  In other products
    with zeros it has to be.
    """
    left, right = (constant_array(arg) for arg in call.args)
    if len(shape_of(call)) != 4 or str(call.ty.dtype) != "float32":
        return None
    if left is not None and left.ndim == 2:
        x, matrix, axis = call.args[1], left, 2
    elif right is not None and right.ndim == 2:
        x, matrix, axis = call.args[0], right.T, 3
    else:
        return None
    taps = int(np.count_nonzero(matrix, axis=1).max())
    is_resize = taps < matrix.shape[1] and np.allclose(matrix.sum(axis=1), 1)
    is_dense = layout.is_blocked(x) and (matrix != 0).all()
    if not (is_resize or is_dense) or not 1 <= taps <= MOST_TAPS:
        return None
    # The places of the weights that are not zero, in order; stable, so that sums keep theirs.
    order = np.argsort(matrix == 0, axis=1, kind="stable")[:, :taps]
    weights = np.take_along_axis(matrix, order, axis=1)
    return _emit(layout, x, {axis: without_zeros(order, weights)})


def _emit(layout: Layout, x: relax.Expr, tables: dict[int, Table]) -> Result | None:
    if not tables:
        return None
    weighted = any((weights != 1).any() for _, weights in tables.values())
    arrays = [
        (places.astype(np.int32), weights.astype(np.float32)) for places, weights in tables.values()
    ]
    constants = [layout.constant(array) for pair in arrays for array in pair[: 1 + weighted]]
    expr = layout.emit(
        "resize",
        lambda t, *c: resize.compute(t, c, list(tables), weighted),
        layout.existing(x),
        *constants,
    )
    return Result(expr, layout.is_blocked(x))
