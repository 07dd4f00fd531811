"""Rules for resizes, as weighted sums of a few neighbours along rows and columns."""

from __future__ import annotations

import numpy as np
from tvm import relax

from ....ir.rewriter import constant_array, shape_of
from ....schedules import resize
from ....schedules.resize import linear_taps, relax_nearest, relax_positions, without_zeros
from ..layout import LayoutPass, Result, rule

#: Most taps of one element of a resize, whose loop is unrolled.
MOST_TAPS = 8

#: Places and weights of an axis, both of shape (result, taps).
Table = tuple[np.ndarray, np.ndarray]


@rule("relax.image.resize2d")
def resize_rule(layout: LayoutPass, call: relax.Call) -> Result | None:
    """Rewrite bilinear and nearest ``resize2d``, blocked or plain."""
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


def mix_rule(layout: LayoutPass, call: relax.Call) -> Result | None:
    """Rewrite a product with a sparse matrix along rows or columns, such as a cubic resize.

    Elements with a weight of zero are not read, as zero times NaN is NaN.  For products that are
    not resizes the NaN is correct, so these are only rewritten if no weight is zero.
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
    # Places of the non-zero weights, in order; the sort is stable to keep the order of sums.
    order = np.argsort(matrix == 0, axis=1, kind="stable")[:, :taps]
    weights = np.take_along_axis(matrix, order, axis=1)
    return _emit(layout, x, {axis: without_zeros(order, weights)})


def _emit(layout: LayoutPass, x: relax.Expr, tables: dict[int, Table]) -> Result | None:
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
