"""Rules for gathering and scattering by indices."""

from __future__ import annotations

import numpy as np
import onnx

from ..converter import normalized_axis
from ..graph import node_attributes
from .rewriter import RunTimeSizes, rule


@rule("Gather")
def gather(r: RunTimeSizes, node: onnx.NodeProto) -> None:
    """Gather slices by indices; invalid indices may read any slice within the data."""
    data, indices = node.input
    there, here = r.bounded.get(data), r.bounded.get(indices)
    axis = normalized_axis(node_attributes(node).get("axis", 0), len(r.shape(data)))
    if there is not None and there.axis == axis:
        indices = r.from_front(indices, there.size)
        there = None
    if here is not None and there is not None:
        raise r.refusal("both its data and its indices have an unknown number")
    if here is not None and indices in r.graph.constants:
        # In the constant indices of a bounded Range, only invalid ones can be out of range.
        extent = r.shape(data)[axis]
        indices = r.constant(r.graph.constants[indices].clip(-extent, extent - 1))
    r.keep({1: indices})
    if here is not None:
        r.mark(node.output[0], axis + here.axis, here.size)
    elif there is not None:
        further = len(r.shape(indices)) - 1 if there.axis > axis else 0
        r.mark(node.output[0], there.axis + further, there.size)


@rule("GatherND")
def gather_nd(r: RunTimeSizes, node: onnx.NodeProto) -> None:
    """Gather slices by index tuples; invalid tuples read the first slice."""
    data, indices = node.input
    if node_attributes(node).get("batch_dims", 0):
        raise r.refusal("it has batches")
    there, here = r.bounded.get(data), r.bounded.get(indices)
    depth, rank = r.shape(indices)[-1], len(r.shape(indices))
    if here is not None and here.axis == rank - 1:
        raise r.refusal("the length of its index tuples is not fixed")
    indices = r.masked(indices, 0)
    if there is not None and there.axis < depth:
        indices = _wrapped(r, indices, data, depth)
        there = None
    if here is not None and there is not None:
        raise r.refusal("both its data and its indices have an unknown number")
    r.keep({1: indices})
    if here is not None:
        r.mark(node.output[0], here.axis, here.size)
    elif there is not None:
        r.mark(node.output[0], rank - 1 + there.axis - depth, there.size)


def _wrapped(r: RunTimeSizes, indices: str, data: str, depth: int) -> str:
    """Convert negative indices of tuples to indices from the front."""
    parts = [r.emit("Reshape", [r.scalar(e), r.integers([1])]) for e in r.extents(data)[:depth]]
    extents = parts[0] if depth == 1 else r.emit("Concat", parts, axis=0)
    wide = r.cast(indices, "int64")
    below = r.emit("Less", [wide, r.integers(0)])
    return r.emit("Where", [below, r.emit("Add", [wide, extents]), wide])


@rule("GatherElements")
def gather_elements(r: RunTimeSizes, node: onnx.NodeProto) -> None:
    """Gather elements by indices along an axis; the other axes must fit the data."""
    data, indices = node.input
    there, here = r.bounded.get(data), r.bounded.get(indices)
    axis = normalized_axis(node_attributes(node).get("axis", 0), len(r.shape(data)))
    same = here and there and (here.axis, here.size) == (there.axis, there.size)
    if there is not None and there.axis != axis and not same:
        raise r.refusal("its indices need not fit its data")
    if (
        here is not None
        and here.axis != axis
        and not same
        and not _is_within(r, indices, data, axis)
    ):
        raise r.refusal("its data need not fit its indices")
    indices = r.masked(indices, 0)
    if there is not None and there.axis == axis:
        indices = r.from_front(indices, there.size)
    r.keep({1: indices})
    if here is not None:
        r.mark(node.output[0], here.axis, here.size)


def _is_within(r: RunTimeSizes, indices: str, data: str, axis: int) -> bool:
    """Return whether the indices' extents are within the data's along all other axes."""
    pairs = enumerate(zip(r.shape(indices), r.shape(data), strict=True))
    return all(few <= many for place, (few, many) in pairs if place != axis)


@rule("Scatter", "ScatterElements", "ScatterND")
def scatter(r: RunTimeSizes, node: onnx.NodeProto) -> None:
    """Scatter updates; invalid ones write to an additional last row, which is cut off."""
    data, indices, updates = node.input
    there, here = r.bounded.get(data), r.bounded.get(indices)
    late = r.bounded.get(updates)
    nd = node.op_type == "ScatterND"
    shape, rank = r.shape(data), len(r.shape(indices))
    axis = 0 if nd else normalized_axis(node_attributes(node).get("axis", 0), len(shape))
    if (here is None) != (late is None) or (
        here and late and (here.axis, here.size) != (late.axis, late.size)
    ):
        raise r.refusal("its indices and updates need not have the same number of elements")
    if nd and here is not None and here.axis == rank - 1:
        raise r.refusal("the length of its index tuples is not fixed")
    if (
        there is not None
        and there.axis != axis
        and ((nd and there.axis >= r.shape(indices)[-1]) or not nd)
    ):
        raise r.refusal("its updates need not fit its data")
    if not nd and not _is_within(r, indices, data, axis):
        raise r.refusal("its data need not fit its indices")
    if nd:
        indices = _wrapped(r, indices, data, r.shape(indices)[-1])
    else:
        indices = r.from_front(indices, r.extents(data)[axis])
    if here is None:
        r.keep({1: indices})
    else:
        kind = r.graph.type_of(data)
        one = [1 if a == axis else extent for a, extent in enumerate(shape)]
        longer = r.emit("Concat", [data, r.constant(np.zeros(one, kind.dtype))], axis=axis)
        mask = r.mask(here.size, r.shape(indices), here.axis)
        away = np.zeros(r.shape(indices)[-1] if nd else (), np.int64)
        away[(0,) if nd else ()] = shape[axis]
        indices = r.emit("Where", [mask, r.cast(indices, "int64"), r.integers(away)])
        attributes = node_attributes(node)
        written = r.emit(node.op_type, [longer, indices, updates], **attributes)
        r.copy(r.front(written, axis, shape[axis]))
    if there is not None:
        r.mark(node.output[0], there.axis, there.size)
