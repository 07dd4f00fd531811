"""Rules for operators that slice, pad, split and concatenate."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx

from ...ir.limits import MOST_ELEMENTS
from ..converter import Refusal, normalized_axis
from ..graph import node_attributes
from . import sizes
from .rewriter import RunTimeSizes, rule
from .sizes import Number, Size


@rule("Slice")
def slice_(r: RunTimeSizes, node: onnx.NodeProto) -> None:
    """Slice a bounded axis, or an axis up to a size; valid elements are moved to the front."""
    name, attributes = node.input[0], node_attributes(node)
    extents = r.extents(name)
    if r.graph.opset < 10:
        starts, ends = attributes["starts"], attributes["ends"]
        axes: Sequence[int] = attributes.get("axes", range(len(starts)))
        steps: Sequence[int] = [1] * len(starts)
    else:
        r.only(0)
        starts, ends = r.numbers(1, "begins"), r.numbers(2, "ends")
        axes = r.known(3, "axes") if r.has(3) else range(len(starts))
        steps = r.known(4, "steps") if r.has(4) else [1] * len(starts)
    fixed: list[tuple[int, int, int, int]] = []
    moved: list[tuple[int, Number, Number, int]] = []
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        if step == 0:
            raise Refusal("its step is 0")
        axis = normalized_axis(axis, len(extents))
        if isinstance(extents[axis], int) and isinstance(start, int) and isinstance(end, int):
            fixed.append((axis, start, end, step))
        else:
            moved.append((axis, start, end, step))
    if fixed:
        columns = [list(column) for column in zip(*fixed, strict=True)]
        axes_, starts_, ends_, steps_ = map(r.integers, columns)
        if r.graph.opset < 10:
            name = r.emit("Slice", [name], starts=columns[1], ends=columns[2], axes=columns[0])
        else:
            name = r.emit("Slice", [name, starts_, ends_, axes_, steps_])
    if len(moved) > 1 or (
        moved
        and any(
            isinstance(extent, Size) for axis, extent in enumerate(extents) if axis != moved[0][0]
        )
    ):
        raise r.refusal("several axes of its result have an unknown number of elements")
    if not moved:
        (axis,) = (a for a, extent in enumerate(extents) if isinstance(extent, Size))
        r.copy(name)
        r.mark(node.output[0], axis, extents[axis])
        return
    axis, start, end, step = moved[0]
    extent = extents[axis]
    if step < 0:
        if (
            step != -1
            or not isinstance(start, int)
            or not isinstance(end, int)
            or not ((start == -1 or start >= sizes.most(extent)) and end <= -sizes.most(extent) - 1)
        ):
            raise r.refusal("its step is negative")
        last = sizes.subtract(extent, 1)
        size = extent
        places = r.emit("Sub", [r.scalar(last), r.integers(np.arange(r.shape(name)[axis]))])
    else:
        first, stop = (_clamped(number, extent) for number in (start, end))
        size = sizes.maximum(sizes.subtract(stop, first), 0)
        if step > 1:
            size = sizes.divide(sizes.add(size, step - 1), step)
        bound = min(sizes.most(size), r.shape(name)[axis])
        if isinstance(first, int) and first == 0 and step == 1:
            r.copy(r.front(name, axis, bound))
            r.mark(node.output[0], axis, size)
            return
        places = r.emit("Add", [r.integers(step * np.arange(bound)), r.scalar(first)])
    r.become("Gather", [name, places], axis=axis)
    r.mark(node.output[0], axis, size)


def _clamped(number: Number, extent: Number) -> Number:
    """Return a slice's start or end clamped to the axis; negative ones count from its end."""
    if isinstance(number, Size) and number.least < 0:
        raise Refusal("where it begins or ends is computed at run time, and may count from the end")
    if isinstance(number, int) and number < 0:
        number = sizes.add(extent, max(number, -MOST_ELEMENTS))
    return sizes.minimum(sizes.maximum(number, 0), extent)


@rule("Pad")
def pad(r: RunTimeSizes, node: onnx.NodeProto) -> None:
    """Pad with a constant, which also replaces invalid elements; the new size may be static."""
    name, attributes = node.input[0], node_attributes(node)
    if attributes.get("mode", b"constant") not in (b"constant", "constant"):
        raise r.refusal("it pads with elements of its input")
    shape, extents = r.shape(name), r.extents(name)
    axes: Sequence[int] = range(len(shape))
    if r.graph.opset < 11:
        pads, value = attributes["pads"], attributes.get("value", 0.0)
    else:
        r.only(0)
        pads = r.numbers(1, "amounts of padding")
        axes = r.known(3, "axes") if r.has(3) else axes
        known = r.graph.constants.get(node.input[2]) if r.has(2) else np.zeros(1)
        if known is None:
            raise r.refusal("its value is computed at run time")
        value = known.reshape(()).item()
    widths = [0] * (2 * len(shape))
    for axis, low, high in zip(axes, pads[: len(axes)], pads[len(axes) :], strict=True):
        axis = normalized_axis(axis, len(shape))
        if all(isinstance(number, int) for number in (extents[axis], low, high)):
            widths[axis], widths[axis + len(shape)] = low, high
            continue
        if not isinstance(low, int) or low < 0 or sizes.least(high) < 0:
            raise r.refusal("it may crop that axis, or move its elements")
        extents[axis] = sizes.add(sizes.add(extents[axis], low), high)
        most = sizes.most(extents[axis])
        name = r.front(r.masked(name, value), axis, min(shape[axis], most - low))
        widths[axis], widths[axis + len(shape)] = low, most - low - r.shape(name)[axis]
    found = [axis for axis, extent in enumerate(extents) if isinstance(extent, Size)]
    if len(found) > 1:
        raise r.refusal("several axes of its result have an unknown number of elements")
    if r.graph.opset < 11:
        r.become("Pad", [name], pads=widths, value=value)
    else:
        r.become("Pad", [name, r.integers(widths), *node.input[2:3]])
    for axis in found:
        r.mark(node.output[0], axis, extents[axis])


@rule("Split")
def split(r: RunTimeSizes, node: onnx.NodeProto) -> None:
    """Split along an axis that is not bounded."""
    r.only(0)
    here = r.bounded[node.input[0]]
    axis = normalized_axis(node_attributes(node).get("axis", 0), len(r.shape(node.input[0])))
    if axis == here.axis:
        raise r.refusal("it splits that axis")
    r.keep()
    for name in filter(None, node.output):
        r.mark(name, here.axis, here.size)


@rule("Concat")
def concat(r: RunTimeSizes, node: onnx.NodeProto) -> None:
    """Concatenate; along a bounded axis, gather the valid elements of all parts."""
    names = [n for n in node.input if n in r.bounded or 0 not in r.shape(n)]
    rank = len(r.shape(names[0]))
    axis = normalized_axis(node_attributes(node)["axis"], rank)
    found = {r.bounded[n].axis for n in names if n in r.bounded}
    if found != {axis}:
        same = {(r.bounded[n].axis, r.bounded[n].size) if n in r.bounded else None for n in names}
        if len(same) > 1:
            raise r.refusal("its inputs need not have the same number of elements")
        extent = min(r.shape(n)[min(found)] for n in names)
        r.become("Concat", [r.front(n, min(found), extent) for n in names], axis=axis)
        r.mark(node.output[0], min(found), r.bounded[names[0]].size)
        return
    size: Number = 0
    for name in names:
        size = sizes.add(size, r.extents(name)[axis])
    if not any(name in r.bounded for name in names[:-1]):
        r.keep()
    else:
        parts = tuple((r.extents(n)[axis], r.shape(n)[axis]) for n in names)
        positions = r._memo(("join", parts), lambda: _joined(r, parts))
        whole = r.emit("Concat", names, axis=axis)
        if not isinstance(size, Size):  # the sum is static, as for x[k:] and x[:k]
            whole = r.emit("Gather", [whole, positions], axis=axis)
            r.copy(r.front(whole, axis, size))
            return
        r.become("Gather", [whole, positions], axis=axis)
    r.mark(node.output[0], axis, size)


def _joined(r: RunTimeSizes, parts: Sequence[tuple[Number, int]]) -> str:
    """Return the positions of the valid elements in concatenated parts."""
    masks = [
        r.mask(size, [extent], 0) if isinstance(size, Size) else r.constant(np.ones(extent, bool))
        for size, extent in parts
    ]
    return r.compaction(r.emit("Concat", masks, axis=0))[0]
