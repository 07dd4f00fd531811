"""Converters of data movement: reshape, transpose, slice, concatenate, repeat, pad."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import accumulate, pairwise

import numpy as np
import onnx
from tvm import relax, te, tirx, topi
from tvm.relax import op as R

from ...ir.rewriter import constant, shape_of
from ...ir.tensors import TensorType
from ..converter import NodeContext, Refusal, call_unfused, converts, formulas, normalized_axes
from ..graph import Graph, node_attributes

#: Most parts that one kernel concatenates, and that a Split cuts from the tensor directly.
MOST_JOINED = 32


@converts("Transpose")
def transpose(c: NodeContext) -> relax.Expr:
    """Permute the axes, by default in reverse."""
    axes = list(c.attribute("perm") or range(len(c.shape()))[::-1])
    return R.permute_dims(c.input(), axes) if axes else c.input()


@converts("Concat")
def concat(c: NodeContext) -> relax.Expr:
    """Concatenate along an axis, without empty parts."""
    return joined(c, [x for x in c.inputs() if 0 not in shape_of(x)], c.axis())


def joined(c: NodeContext, parts: Sequence[relax.Expr], axis: int) -> relax.Expr:
    """Concatenate parts along an axis, in groups if they are many.

    ::

        before  Concat(x0, x1, ..., x4999)
        after   R.concat(join(x0, ..., x31), join(x32, ..., x63), ...)

    A kernel decides for each element which part has it: its code, and the time to compile it, grow
    faster than the number of parts, and drivers limit its arguments.  The functions of groups are
    never fused, so that they stay separate.
    """
    while len(parts) > MOST_JOINED:
        groups = [parts[i : i + MOST_JOINED] for i in range(0, len(parts), MOST_JOINED)]
        parts = [
            c.emit(call_unfused(c.builder, "join", lambda *xs: topi.concatenate(xs, axis), *group))
            if len(group) > 1
            else group[0]
            for group in groups
        ]
    return parts[0] if len(parts) == 1 else R.concat(list(parts), axis)


@converts("Split")
def split(c: NodeContext) -> list[relax.Expr | None]:
    """Split along an axis into one slice for each used part, in groups if they are many.

    ::

        before  s0, s1, ..., s499 = Split(x)
        after   part0 = part(x)    s0  = R.strided_slice(part0)    s1  = ...
                part1 = part(x)    s32 = R.strided_slice(part1)    s33 = ...

    Slices at different positions of a tensor are different functions, which take some 40 ms each to
    compile; slices of equal groups share functions.  The functions of groups are never fused, so
    that they stay separate.
    """
    axis = c.axis(0)
    ranges = list(pairwise(accumulate(_split_lengths(c, axis), initial=0)))
    used = [c.uses_result(index) for index in range(len(ranges))]
    size = MOST_JOINED if sum(used) > MOST_JOINED else len(ranges)
    parts: list[relax.Expr | None] = []
    for first in range(0, len(ranges), size):
        group, wanted = ranges[first : first + size], used[first : first + size]
        start, x = 0, c.input()
        if size < len(ranges) and any(wanted):
            start, stop = group[0][0], group[-1][1]
            cut = partial(topi.strided_slice, begin=[start], end=[stop], strides=[1], axes=[axis])
            x = c.emit(call_unfused(c.builder, "part", cut, x))
        parts += [
            R.strided_slice(x, [axis], [begin - start], [end - start]) if is_used else None
            for (begin, end), is_used in zip(group, wanted, strict=True)
        ]
    return parts


def _split_lengths(c: NodeContext, axis: int) -> list[int]:
    """Return the extents of the parts, from an input or an attribute, by default equal ones."""
    if c.has(1):
        return [int(length) for length in c.array(1, "lengths of the parts").reshape(-1)]
    if c.attribute("split"):
        return list(c.attribute("split"))
    extent = c.shape()[axis]
    size = -(-extent // len(c.results))  # the last part may be smaller
    return [min(size, extent - start) for start in range(0, extent, size)]


def slice_ranges(
    node: onnx.NodeProto, shape: Sequence[int], opset: int, constants: Mapping[str, np.ndarray]
) -> dict[int, range]:
    """Return the indices that a Slice reads along each sliced axis of a shape.

    They come from attributes in older operator sets, from inputs in newer ones.
    """
    if opset < 10:
        attributes = node_attributes(node)
        starts, ends = attributes.get("starts", []), attributes.get("ends", [])
        axes, steps = attributes.get("axes"), None
    else:
        names = [*node.input[1:], "", "", "", ""][:4]
        if any(name and name not in constants for name in names):
            raise Refusal("where it begins and ends is computed at run time")
        starts, ends, axes, steps = (
            constants[name].reshape(-1).tolist() if name else None for name in names
        )
        starts, ends = starts or [], ends or []
    axes = list(range(len(starts))) if axes is None else list(axes)
    steps = [1] * len(starts) if steps is None else steps
    if not len(starts) == len(ends) == len(axes) == len(steps):
        raise Refusal("its begins, ends, axes and steps differ in number")
    ranges = {}
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        if not -len(shape) <= axis < len(shape) or step == 0:
            raise Refusal(f"its axis {axis} or step {step} is impossible for {len(shape)} axes")
        # ONNX counts from the end and clamps like Python, except for the start of negative steps.
        start = max(start, -shape[axis]) if step < 0 else start
        ranges[axis % len(shape)] = range(*slice(start, end, step).indices(shape[axis]))
    return ranges


def _sliced_type(node: onnx.NodeProto, graph: Graph) -> TensorType:
    """Return the type of a slice, as ONNX's inference fails for ranges that must be clamped."""
    data = graph.type_of(node.input[0])
    ranges = slice_ranges(node, data.shape, graph.opset, graph.constants)
    shape = [len(ranges.get(axis, range(extent))) for axis, extent in enumerate(data.shape)]
    return TensorType(tuple(shape), data.dtype)


@converts("Slice", result_type=_sliced_type)
def slice_(c: NodeContext) -> relax.Expr:
    """Slice some axes, with steps that may be negative."""
    ranges = slice_ranges(c.node, c.shape(), c.opset, c.graph.constants)
    return _take_ranges(c.input(), c.shape(), ranges)


def _take_ranges(x: relax.Expr, shape: Sequence[int], ranges: dict[int, range]) -> relax.Expr:
    forward = {axis: r for axis, r in ranges.items() if r.step > 0 and r != range(shape[axis])}
    if forward:
        begins, ends, steps = zip(
            *((r.start, r.stop, r.step) for r in forward.values()), strict=True
        )
        x = R.strided_slice(x, list(forward), begins, ends, steps)
    for axis, r in ranges.items():
        if r.step < 0:
            x = take_places(x, np.array(r), axis)
    return x


def take_places(x: relax.Expr, places: np.ndarray, axis: int) -> relax.Expr:
    """Gather along an axis at constant indices within it."""
    # The mode "fast" would save the clamping, but warns at every use.
    return R.take(x, constant(places.astype(np.int32)), axis, "clip")


formulas(
    # The result's shape is known from ONNX's shape inference.
    **dict.fromkeys(
        ("Reshape", "Flatten", "Squeeze", "Unsqueeze"),
        lambda c: R.reshape(c.input(), c.result.shape),
    ),
    Expand=lambda c: R.broadcast_to(c.input(), c.result.shape),
    Tile=lambda c: R.tile(c.input(), [int(n) for n in c.array(1, "repeats")]),
)


@converts("DepthToSpace", "SpaceToDepth")
def depth_and_space(c: NodeContext) -> relax.Expr:
    """Move blocks of channels into space, or back, in the order DCR or CRD."""
    n, channels, height, width = c.shape()
    block, is_dcr = c.required("blocksize"), c.attribute("mode", "DCR") == "DCR"
    split: tuple[int, ...] = (n, channels, height // block, block, width // block, block)
    axes = [0, 3, 5, 1, 2, 4] if is_dcr else [0, 1, 3, 5, 2, 4]
    if c.op_type == "DepthToSpace":
        depth = channels // (block * block)
        split = (n, *((block, block, depth) if is_dcr else (depth, block, block)), height, width)
        axes = [0, 3, 4, 1, 5, 2] if is_dcr else [0, 1, 4, 2, 5, 3]
    return R.reshape(R.permute_dims(R.reshape(c.input(), split), axes), c.result.shape)


@converts("Trilu")
def trilu(c: NodeContext) -> relax.Expr:
    """Keep the upper or lower triangle of matrices."""
    shape = c.shape()
    diagonal = int(c.array(1, "diagonal").reshape(())) if c.has(1) else 0
    triangle = np.triu if c.attribute("upper", 1) else np.tril
    mask = triangle(np.ones(shape[-2:], bool), diagonal)
    return R.where(constant(mask), c.input(), c.constant(0))


@converts("Pad")
def pad(c: NodeContext) -> relax.Expr:
    """Pad with a constant, or with elements of the input; negative padding crops."""
    shape = c.shape()
    amounts, mode, x = _amounts(c, len(shape)), c.attribute("mode", "constant"), c.input()
    if mode == "constant":
        if c.opset < 11:
            return _pad_constant(c, amounts, float(c.attribute("value", 0.0)))
        known = c.known(2)
        if c.has(2) and known is None:
            return _pad_computed(c, amounts)
        return _pad_constant(c, amounts, 0 if known is None else known.reshape(()).item())
    if mode not in ("reflect", "edge", "wrap"):
        raise Refusal(f"its mode {mode!r} is unknown")
    for axis, (low, high) in enumerate(amounts):
        if low == high == 0:
            continue
        # The source of each element of the result is constant.  The part of a cropped axis that
        # is left is repeated, as in ONNX Runtime.
        left = _left(shape[axis], low, high)
        if not left:
            raise Refusal("it crops all that it would repeat")
        x = take_places(x, np.pad(left, (max(low, 0), max(high, 0)), mode), axis)
    return x


def _amounts(c: NodeContext, rank: int) -> list[tuple[int, int]]:
    """Return the padding before and after each axis."""
    pads = list(c.required("pads") if c.opset < 11 else c.array(1, "amounts of padding").tolist())
    axes = normalized_axes(c.array(3, "axes").tolist() if c.has(3) else range(rank), rank)
    if len(pads) != 2 * len(axes):
        raise Refusal(f"it has {len(pads)} amounts of padding for {len(axes)} axes")
    amounts = [(0, 0)] * rank
    for axis, low, high in zip(axes, pads[: len(axes)], pads[len(axes) :], strict=True):
        amounts[axis] = int(low), int(high)
    return amounts


def _pad_constant(c: NodeContext, amounts: list[tuple[int, int]], value: float) -> relax.Expr:
    """Crop by negative padding, then pad with a value."""
    x = _cropped(c, amounts)
    widths = [max(width, 0) for pair in amounts for width in pair]
    return R.nn.pad(x, widths, pad_value=value) if any(widths) else x


def _left(extent: int, low: int, high: int) -> range:
    """Return the indices of an axis that negative padding leaves."""
    return range(max(-low, 0), extent - max(-high, 0))


def _cropped(c: NodeContext, amounts: list[tuple[int, int]]) -> relax.Expr:
    """Crop the first input by negative padding."""
    crops = {
        axis: _left(extent, low, high)
        for axis, (extent, (low, high)) in enumerate(zip(c.shape(), amounts, strict=True))
        if low < 0 or high < 0
    }
    return _take_ranges(c.input(), c.shape(), crops)


def _pad_computed(c: NodeContext, amounts: list[tuple[int, int]]) -> relax.Expr:
    """Pad with a value that is computed at run time; crop by negative padding."""

    def compute(x: te.Tensor, value: te.Tensor) -> te.Tensor:
        def element(*index: tirx.Var) -> tirx.Expr:
            at = [i - low for i, (low, _) in zip(index, amounts, strict=True)]
            inside = [i >= 0 for i, (low, _) in zip(at, amounts, strict=True) if low > 0]
            for i, extent, (_, high) in zip(at, c.shape(), amounts, strict=True):
                inside += [i < extent] if high > 0 else []
            return tirx.if_then_else(tirx.all(*inside), x(*at), value(*[0] * len(value.shape)))

        return te.compute(c.result.shape, element, name="pad")

    if all(width <= 0 for pair in amounts for width in pair):
        return _cropped(c, amounts)
    return c.builder.call_te(compute, c.input(), c.input(2), primfunc_name_hint="pad")


@converts("CenterCropPad")
def center_crop_pad(c: NodeContext) -> relax.Expr:
    """Crop or pad around the centre to a given shape."""
    differences = [there - here for here, there in zip(c.shape(), c.result.shape, strict=True)]
    # If a difference is odd, cropping removes and padding adds one more element at the end.
    amounts = [(int(d / 2), d - int(d / 2)) for d in differences]
    return _pad_constant(c, amounts, 0)
