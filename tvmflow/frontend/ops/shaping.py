"""Operators that move elements without computing: reshape, transpose, slice, join, repeat."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import relax

from ..slices import slice_ranges
from .context import NodeContext, Refusal, constant, shape_of
from .registry import converts

R = relax.op


@converts("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def reshape(c: NodeContext) -> relax.Expr:
    """Give the same elements another shape, which ONNX's shape inference has worked out."""
    return R.reshape(c.input(), c.result.shape)


@converts("Transpose")
def transpose(c: NodeContext) -> relax.Expr:
    """Permute the axes; reversed unless ``perm`` is given."""
    axes = list(c.attribute("perm") or range(len(c.shape()))[::-1])
    return R.permute_dims(c.input(), axes) if axes else c.input()


@converts("Concat")
def concat(c: NodeContext) -> relax.Expr:
    """Join along an axis; empty parts vanish."""
    axis = normalized_axis(c.required("axis"), len(c.result.shape))
    parts = [x for x in c.inputs() if 0 not in shape_of(x)]
    return parts[0] if len(parts) == 1 else R.concat(parts, axis)


@converts("Split")
def split(c: NodeContext) -> list[relax.Expr | None]:
    """Cut into parts along an axis: one slice for each part that is used."""
    axis = normalized_axis(c.attribute("axis", 0), len(c.shape()))
    begin = 0
    parts: list[relax.Expr | None] = []
    lengths = _split_lengths(c, axis)
    for index, length in enumerate(lengths):
        used = c.uses_result(index)
        parts.append(
            R.strided_slice(c.input(), [axis], [begin], [begin + length]) if used else None
        )
        begin += length
    return parts


def _split_lengths(c: NodeContext, axis: int) -> list[int]:
    """Return the extents of the parts, from an input, an attribute, or equal ones."""
    if c.has(1):
        return [int(length) for length in c.array(1, "lengths of the parts").reshape(-1)]
    given = c.attribute("split")
    if given:
        return list(given)
    count, extent = len(c.results), c.shape()[axis]
    size = -(-extent // count)  # the last part may be smaller
    return [min(size, extent - start) for start in range(0, extent, size)]


@converts("Slice")
def slice_(c: NodeContext) -> relax.Expr:
    """Take a range of some axes, with steps; negative steps go backwards."""
    ranges = slice_ranges(c.node, c.constants, c.shape(), c.opset)
    if isinstance(ranges, str):
        raise Refusal(ranges)
    return take_ranges(c, c.input(), ranges)


def take_ranges(c: NodeContext, x: relax.Expr, ranges: dict[int, range]) -> relax.Expr:
    """Take a range of each of some axes."""
    shape = shape_of(x)
    forward = {axis: r for axis, r in ranges.items() if r.step > 0 and r != range(shape[axis])}
    backward = {axis: r for axis, r in ranges.items() if r.step < 0 and len(r) > 0}
    for r in ranges.values():
        if len(r) == 0:
            raise Refusal("its result is empty")
    if forward:
        x = R.strided_slice(
            x, list(forward), [r.start for r in forward.values()],
            [r.stop for r in forward.values()], [r.step for r in forward.values()],
        )  # fmt: skip
    for axis, r in backward.items():
        x = take_places(c.emit(x), np.array(r), axis)
    return x


def take_places(x: relax.Expr, places: np.ndarray, axis: int) -> relax.Expr:
    """Take elements of an axis at places that are known now and within it."""
    # The mode "fast" would save the comparison with the limits, but warns at every use.
    return R.take(x, constant(places.astype(np.int32)), axis, "clip")


@converts("Expand")
def expand(c: NodeContext) -> relax.Expr:
    """Broadcast to a shape."""
    return R.broadcast_to(c.input(), c.result.shape)


@converts("Tile")
def tile(c: NodeContext) -> relax.Expr:
    """Repeat along every axis."""
    return R.tile(c.input(), [int(n) for n in c.array(1, "repeats")])


@converts("DepthToSpace")
def depth_to_space(c: NodeContext) -> relax.Expr:
    """Move blocks of channels into space: depth-column-row or column-row-depth."""
    n, channels, height, width = c.shape()
    block = c.required("blocksize")
    depth = channels // (block * block)
    if c.attribute("mode", "DCR") == "DCR":
        shape, axes = (n, block, block, depth, height, width), [0, 3, 4, 1, 5, 2]
    else:
        shape, axes = (n, depth, block, block, height, width), [0, 1, 4, 2, 5, 3]
    moved = c.emit(R.permute_dims(c.emit(R.reshape(c.input(), shape)), axes))
    return R.reshape(moved, c.result.shape)


@converts("SpaceToDepth")
def space_to_depth(c: NodeContext) -> relax.Expr:
    """Move blocks of space into channels: depth-column-row or column-row-depth."""
    n, channels, height, width = c.shape()
    block = c.required("blocksize")
    shape = (n, channels, height // block, block, width // block, block)
    axes = [0, 3, 5, 1, 2, 4] if c.attribute("mode", "DCR") == "DCR" else [0, 1, 3, 5, 2, 4]
    moved = c.emit(R.permute_dims(c.emit(R.reshape(c.input(), shape)), axes))
    return R.reshape(moved, c.result.shape)


@converts("Trilu")
def trilu(c: NodeContext) -> relax.Expr:
    """Keep the upper or lower triangle of matrices."""
    shape = c.shape()
    diagonal = int(c.array(1, "diagonal").reshape(())) if c.has(1) else 0
    triangle = np.triu if c.attribute("upper", 1) else np.tril
    mask = triangle(np.ones(shape[-2:], bool), diagonal)
    return R.where(constant(mask), c.input(), c.constant(0))


def normalized_axis(axis: int, rank: int) -> int:
    """Count an axis from the front.

    Raises
    ------
    Refusal
        If there is no such axis.
    """
    if not -rank <= axis < rank:
        raise Refusal(f"its axis {axis} does not exist in a tensor with {rank} axes")
    return axis % rank


def normalized_axes(axes: Sequence[int], rank: int) -> list[int]:
    """Count axes from the front."""
    return [normalized_axis(int(axis), rank) for axis in axes]
