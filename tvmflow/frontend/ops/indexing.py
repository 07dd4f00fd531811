"""Converters of gathering and scattering by indices.

ONNX forbids indices out of range, and ONNX Runtime refuses them.  Here an index that is computed at
run time is clamped to the range, in every operator, so nothing is read or written outside a tensor;
constant ones out of range are refused.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from tvm import relax, te, tirx
from tvm.relax import op as R

from ...ir.rewriter import constant
from ..converter import InvalidNode, NodeContext, Refusal, converts, formulas, shape_along


def _indices(c: NodeContext, extents: npt.ArrayLike) -> relax.Expr:
    """Return the second input's indices counted from the front; refuse constant ones out of range.

    ``extents``, of the indexed axes, broadcast against the indices.
    """
    extents, values = np.asarray(extents, np.int64), c.known(1)
    if values is not None:
        if ((values < -extents) | (values >= extents)).any():
            raise Refusal("a constant index is out of range")
        return constant(np.where(values < 0, values + extents, values).astype(np.int64))
    indices = c.cast(c.input(1), "int64")
    # Indices are clamped before they are used in sums, which therefore cannot overflow.
    indices = in_range(indices, extents)
    # The sign is used as a mask to add the extent to negative indices, because TVM's OpenCL code
    # does not vectorise booleans. LLVM turns a shift by 63 bits into "x < 0", whose AVX-512 code is
    # a hundred times slower on some virtual machines. A shift by 31 is also right if TVM narrows
    # indices with known limits, as of ArgMax, to 32 bits: no tensor has more elements.
    sign = R.right_shift(indices, constant(np.array(31, np.int64)))
    return indices + R.bitwise_and(sign, constant(extents))


def in_range(indices: relax.Expr, extents: np.ndarray) -> relax.Expr:
    """Clamp int64 indices to ``-extents`` to ``extents - 1``, which broadcast."""
    return R.minimum(R.maximum(indices, constant(-extents)), constant(extents - 1))


def _along_axis(c: NodeContext) -> tuple[relax.Expr, int]:
    """Return the indices, and the axis that they index."""
    axis = c.axis(0)
    return _indices(c, c.shape()[axis]), axis


def _limited(number: tirx.Expr, most: int) -> tirx.Expr:
    """Return a number from data in int64, clamped to 0 to ``most``."""
    wide = number.astype("int64")
    return te.max(te.min(wide, tirx.const(most, "int64")), tirx.const(0, "int64"))


@converts("GatherND")
def gather_nd(c: NodeContext) -> relax.Expr:
    """Gather slices by index tuples."""
    batch, depth = c.attribute("batch_dims", 0), c.shape(1)[-1]
    return R.gather_nd(c.input(), _indices(c, c.shape()[batch : batch + depth]), batch)


formulas(
    Gather=lambda c: R.take(c.input(), *_along_axis(c), "clip"),
    GatherElements=lambda c: R.gather_elements(c.input(), *_along_axis(c)),
)


@converts("Scatter", "ScatterElements", "ScatterND")
def scatter(c: NodeContext) -> relax.Expr:
    """Write single elements along an axis, or slices by index tuples."""
    reduction = str(c.attribute("reduction", "none"))
    if reduction not in ("none", "add", "mul", "max", "min"):
        raise Refusal(f"its reduction {reduction!r} is unknown")
    reduction = "update" if reduction == "none" else reduction
    if not np.prod(c.shape(1)):
        return c.input()
    if c.op_type == "ScatterND":
        indices = _indices(c, c.shape()[: c.shape(1)[-1]])
        return R.scatter_nd(c.input(), indices, c.input(2), reduction)
    indices, axis = _along_axis(c)
    x, updates = c.input(), c.input(2)
    # TVM assumes that the data have the indices' extents, so data beyond them are split off.
    shape, reached = c.shape(), c.shape(1)
    beyond = []
    for a, (extent, end) in enumerate(zip(shape, reached, strict=True)):
        if a != axis and end < extent:
            beyond.append((a, c.emit(R.strided_slice(x, [a], [end], [extent]))))
            x = c.emit(R.strided_slice(x, [a], [0], [end]))
    x = R.scatter_elements(x, indices, updates, axis, reduction)
    for a, rest in reversed(beyond):
        x = R.concat([c.emit(x), rest], a)
    return x


@converts("OneHot")
def one_hot(c: NodeContext) -> relax.Expr:
    """Expand indices to vectors that are "on" at the index and "off" elsewhere."""
    # Indices in bytes are widened, as they cannot hold all positions.
    kind = "float32" if c.is_float() else "int64"
    depth = int(c.array(1, "depth").reshape(()))
    values = c.array(2, "values")
    off, on = constant(values[:1].reshape(())), constant(values[1:].reshape(()))
    rank = len(c.result.shape)
    axis = c.axis(-1, rank)
    shape = (*c.result.shape[:axis], 1, *c.result.shape[axis + 1 :])
    indices = R.reshape(c.cast(c.input(), kind), shape)
    positions = np.arange(depth).reshape(shape_along(axis, rank))
    hit = R.equal(indices, constant(positions.astype(kind)))
    # Negative indices count from the end.
    wrapped = R.equal(indices, constant((positions - depth).astype(kind)))
    hit = R.logical_or(hit, wrapped)
    return R.where(hit, on, off)


@converts("ReverseSequence")
def reverse_sequence(c: NodeContext) -> relax.Expr:
    """Reverse the first elements of each sequence of a batch, up to its length."""
    batch, time = c.attribute("batch_axis", 1), c.attribute("time_axis", 0)
    if {batch, time} != {0, 1}:
        raise InvalidNode(f"batch and time are its axes {batch} and {time}, expected 0 and 1")
    extent = c.shape()[time]
    if extent == 1:
        return c.input()

    def compute(x: te.Tensor, lengths: te.Tensor) -> te.Tensor:
        def element(*index: tirx.Var) -> tirx.Expr:
            # Fused functions have int64 indices.
            place, at = list(index), index[time].astype("int64")
            length = _limited(lengths(index[batch]), extent)
            # The index must be in range even if the other case is selected.
            turned = te.max(length - 1 - at, tirx.const(0, "int64"))
            place[time] = tirx.Select(at < length, turned, at)
            return x(*place)

        return te.compute(x.shape, element, name="reverse_sequence")

    return c.builder.call_te(compute, c.input(), c.input(1), primfunc_name_hint="reverse_sequence")


@converts("TensorScatter")
def tensor_scatter(c: NodeContext) -> relax.Expr:
    """Write an update into a cache along an axis, at a separate position for each batch."""
    axis, mode = c.axis(-2), c.attribute("mode", "linear")
    if mode not in ("linear", "circular") or axis == 0:
        raise InvalidNode(f"its mode is {mode!r} along the axis {axis}")
    length, part = c.shape()[axis], c.shape(1)[axis]
    if part > length:
        raise InvalidNode(f"it writes {part} elements into {length}")

    begins = c.input(2) if c.has(2) else constant(np.zeros(c.shape()[0], np.int64))

    def compute(cache: te.Tensor, update: te.Tensor, places: te.Tensor) -> te.Tensor:
        def element(*index: tirx.Var) -> tirx.Expr:
            begin = _limited(places(index[0]), length if mode == "circular" else length - part)
            at = index[axis].astype("int64") - begin
            if mode == "circular":
                at = tirx.floormod(at, tirx.const(length, "int64"))
            place = list(index)
            place[axis] = at
            inside = tirx.all(at >= 0, at < part)
            return tirx.if_then_else(inside, update(*place), cache(*index))

        return te.compute(cache.shape, element, name="tensor_scatter")

    return c.builder.call_te(
        compute, c.input(), c.input(1), begins, primfunc_name_hint="tensor_scatter"
    )
