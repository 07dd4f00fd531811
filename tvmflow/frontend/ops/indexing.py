"""Gathering and scattering by indices."""

from __future__ import annotations

import numpy as np
from tvm import relax

from ..converter import NodeContext, Refusal, constant, converts, normalized_axis, shape_along

R = relax.op


def _indices(c: NodeContext, index: int, extents: np.ndarray) -> relax.Expr:
    """Return an input's indices counted from the front; refuse constant ones out of range.

    ``extents`` of the indexed axes broadcast against the indices.
    """
    values = c.known(index)
    if values is not None:
        if ((values < -extents) | (values >= extents)).any():
            raise Refusal("a constant index is out of range")
        return constant(np.where(values < 0, values + extents, values).astype(np.int64))
    indices = c.cast(c.input(index), "int64")
    # The sign as a mask adds the extent to negative indices. Booleans are no vectors in TVM's
    # OpenCL code; and with 63 bits LLVM makes "x < 0" of it, whose AVX-512 code takes a hundred
    # times as long on some virtual machines.
    sign = c.emit(R.right_shift(indices, constant(np.array(62, np.int64))))
    added = c.emit(R.bitwise_and(sign, constant(extents.astype(np.int64))))
    return c.emit(R.add(indices, added))


def _extent(c: NodeContext, axis: int) -> np.ndarray:
    return np.array(c.shape()[axis], np.int64)


@converts("Gather")
def gather(c: NodeContext) -> relax.Expr:
    """Take slices along an axis."""
    axis = c.axis(0)
    # Indices computed at run time may be out of range: "clip" never reads outside.
    return R.take(c.input(), _indices(c, 1, _extent(c, axis)), axis, "clip")


@converts("GatherElements")
def gather_elements(c: NodeContext) -> relax.Expr:
    """Take single elements along an axis."""
    axis = c.axis(0)
    return R.gather_elements(c.input(), _indices(c, 1, _extent(c, axis)), axis)


@converts("GatherND")
def gather_nd(c: NodeContext) -> relax.Expr:
    """Take slices by index tuples."""
    batch = c.attribute("batch_dims", 0)
    depth = c.shape(1)[-1]
    extents = np.array(c.shape()[batch : batch + depth], np.int64)
    return R.gather_nd(c.input(), _indices(c, 1, extents), batch)


def _scatter_reduction(c: NodeContext) -> str:
    reduction = str(c.attribute("reduction", "none"))
    if reduction not in ("none", "add", "mul", "max", "min"):
        raise Refusal(f"its reduction {reduction!r} is unknown")
    return "update" if reduction == "none" else reduction


@converts("Scatter", "ScatterElements")
def scatter_elements(c: NodeContext) -> relax.Expr:
    """Write single elements along an axis."""
    axis = c.axis(0)
    indices = _indices(c, 1, _extent(c, axis))
    return R.scatter_elements(c.input(), indices, c.input(2), axis, _scatter_reduction(c))


@converts("ScatterND")
def scatter_nd(c: NodeContext) -> relax.Expr:
    """Write slices by index tuples."""
    extents = np.array(c.shape()[: c.shape(1)[-1]], np.int64)
    return R.scatter_nd(c.input(), _indices(c, 1, extents), c.input(2), _scatter_reduction(c))


@converts("OneHot")
def one_hot(c: NodeContext) -> relax.Expr:
    """Expand indices to vectors that are "on" at the index and "off" elsewhere."""
    depth = int(c.array(1, "depth").reshape(()))
    values = c.array(2, "values")
    rank = len(c.result.shape)
    axis = normalized_axis(c.attribute("axis", -1), rank)
    kind = c.dtype()
    shape = (*c.result.shape[:axis], 1, *c.result.shape[axis + 1 :])
    indices = c.emit(R.reshape(c.input(), shape))
    positions = np.arange(depth).reshape(shape_along(axis, rank))
    hit = c.emit(R.equal(indices, constant(positions.astype(kind))))
    if np.dtype(kind).kind != "u":  # -1 is the last position
        wrapped = c.emit(R.equal(indices, constant((positions - depth).astype(kind))))
        hit = c.emit(R.logical_or(hit, wrapped))
    off, on = (constant(value.reshape(())) for value in (values[:1], values[1:]))
    return R.where(hit, on, off)
