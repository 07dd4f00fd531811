"""Sampling of pictures at computed positions, for GridSample and DeformConv.

Each pixel of the result has one position for all channels::

    x[N, C', H, W, c]  (or plain x[N, C, H, W])     grid[N, 2, I, J], columns before rows
    h, w = place(grid[n, 1, i, j], H), place(grid[n, 0, i, j], W)
    y[n, k, i, j, c] = sum_{p, q in 0..1} x[n, k, floor(h) + p, floor(w) + q, c]
                                          * |h - floor(h) - 1 + p| * |w - floor(w) - 1 + q|

with zero for samples outside of the picture.  A work-item computes several blocks of channels
of one pixel: the places and weights of its neighbours are computed once for all of them.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from functools import partial

import tvm
from tvm import relax, s_tir, te, tirx

from ..devices.target import Device
from ..ir.expressions import register_operator
from .common import FAMILY, ROLE, Workload, is_injective
from .family import GROUP_FITS, Declined, Value, knob
from .sizes import group_sizes, tile_choices, tile_of

NAME = "grid_sample"
ORDER = 605

#: The role of the blocks that compute the places of samples.
PLACES = "places"


@dataclass(frozen=True)
class Taps:
    """Places of the taps of sliding windows, tap after tap: in rows ``[K * I]``, columns ``[J]``.

    Pairs are of rows and columns.
    """

    #: Rows of a tap, and columns of a window.
    rows: int
    columns: int
    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...]

    @property
    def numbers(self) -> list[int]:
        """Return the fields as numbers, for an operand of an operator."""
        return [self.rows, self.columns, *self.strides, *self.pads, *self.dilations]

    @classmethod
    def of(cls, numbers: relax.ShapeExpr) -> Taps:
        """Return the taps that such an operand encodes."""
        rows, columns, *pairs = map(int, numbers)
        strides, pads, dilations = zip(pairs[::2], pairs[1::2], strict=True)
        return cls(rows, columns, strides, pads, dilations)

    def centre(self, axis: tirx.Expr, i: tirx.Expr, j: tirx.Expr) -> tirx.Expr:
        """Return the column (on axis 0) or row of a tap for an output."""
        tap = i // self.rows
        places = (
            at * stride - pad + step * dilation
            for at, step, stride, pad, dilation in zip(
                (i % self.rows, j), (tap // self.columns, tap % self.columns),
                self.strides, self.pads, self.dilations, strict=True,
            )
        )  # fmt: skip
        row, column = places
        return tirx.Select(axis == 0, column, row)


def compute(
    x: te.Tensor,
    grid: te.Tensor,
    *,
    method: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool = False,
    taps: Taps | None = None,
) -> te.Tensor:
    """Return the samples as TE; ``method`` is ``bilinear`` or ``nearest``.

    Columns and rows of ``grid`` are from -1 to 1: with ``align_corners`` the centres of the
    outermost elements, else their outer edges; with ``taps`` they are offsets from these.
    Samples outside are zero, or for a ``padding_mode`` of ``border`` the nearest element inside.
    """
    sizes = [int(x.shape[3]), int(x.shape[2])]

    def place(n: tirx.Var, axis: tirx.Var, i: tirx.Var, j: tirx.Var) -> tirx.Expr:
        """Return the real index of a sample along the columns or the rows."""
        if taps is not None:
            # Only offsets are stored: in 16 bits, a position beyond 2048 would be off by one.
            return grid(n, axis, i, j) + taps.centre(axis, i, j).astype("float32")
        size = tirx.Select(axis == 0, *(tirx.const(size, "float32") for size in sizes))
        position = grid(n, axis, i, j) + 1
        index = position * (size - 1) / 2 if align_corners else position * size / 2 - 0.5
        return te.min(te.max(index, 0), size - 1) if padding_mode == "border" else index

    places = te.compute(grid.shape, place, name="places", attrs={ROLE: PLACES})
    # Rounded once for all reads there: on Intel's runtime for CPUs a call takes 4 ns.
    whole = te.nearbyint if method == "nearest" else te.floor
    corners = te.compute(
        grid.shape,
        lambda *index: whole(places(*index)).astype("int32"),
        name="corners",
        attrs={ROLE: PLACES},
    )

    def element(n: tirx.Var, k: tirx.Var, i: tirx.Var, j: tirx.Var, *lane: tirx.Var) -> tirx.Expr:
        def at(row: tirx.Expr, column: tirx.Expr) -> tirx.Expr:
            inside = tirx.all(row >= 0, column >= 0, row < sizes[1], column < sizes[0])
            # Fused functions use int64 indices.
            source = (tirx.Cast("int64", index) for index in (row, column))
            return tirx.if_then_else(inside, x(n, k, *source, *lane), tirx.const(0, x.dtype))

        top, left = corners(n, 1, i, j), corners(n, 0, i, j)
        if method == "nearest":
            return at(top, left)
        below, right = places(n, 1, i, j) - top, places(n, 0, i, j) - left
        return (
            at(top, left) * (1 - below) * (1 - right)
            + at(top, left + 1) * (1 - below) * right
            + at(top + 1, left) * below * (1 - right)
            + at(top + 1, left + 1) * below * right
        )

    shape = [*x.shape[:2], *grid.shape[2:], *x.shape[4:]]
    return te.compute(shape, element, name="grid_sample", attrs={FAMILY: NAME})


#: Our own operator: Relax's takes positions from -1 to 1, which do not give exact indices.
OPERATOR = "relax.tvmflow.sample"


def sample(x: relax.Expr, offsets: relax.Expr, taps: Taps) -> relax.Call:
    """Return bilinear samples ``[N, C, K * I, J]`` of ``x[N, C, H, W]`` at offsets from ``taps``.

    ``offsets[N, 2, K * I, J]`` are those of columns, then of rows.  Samples outside are zero.
    """
    return relax.Call(tvm.ir.Op.get(OPERATOR), [x, offsets, relax.ShapeExpr(taps.numbers)])


def _type_of(call: relax.Call, builder: relax.BlockBuilder) -> relax.TensorType:
    x, offsets, _ = call.args
    shape = [*list(x.ty.shape)[:2], *list(offsets.ty.shape)[2:]]
    return relax.TensorType(shape, x.ty.dtype)


def _legalize(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    *tensors, taps = call.args
    return builder.call_te(partial(compute, taps=Taps.of(taps)), *tensors, primfunc_name_hint=NAME)


register_operator(OPERATOR, "Samples at offsets from the taps of windows.", _type_of, _legalize)


@dataclass(frozen=True)
class Shape:
    """Blocks of channels (or channels of plain tensors), pixels of a result, and lanes (or 1)."""

    blocks: int
    pixels: int
    lanes: int
    _: KW_ONLY
    #: Whether whole texels are written.
    texels: bool


@dataclass(frozen=True)
class Knobs:
    """Knobs of the part that a work-item computes."""

    tile_k: int = knob("Blocks of channels, at one pixel, that a work-item computes.")
    group_size: int = knob("Most work-items of a work-group.")


CONSTRAINTS = {
    "tile_k is at most the number of blocks.": lambda k, s, d: k.tile_k <= s.blocks,
    **GROUP_FITS,
}

#: Blocks of a work-item on a GPU (an assumption), each of which reads four vectors.
GPU_TILE = 4


def heuristic(shape: Shape, device: Device) -> Knobs:
    """Return all blocks on CPUs, whose work-items are rows; a few on GPUs."""
    if device.is_cpu:
        return Knobs(shape.blocks, 1)
    return Knobs(tile_of(shape.blocks, GPU_TILE), device.group_size)


def space(shape: Shape, device: Device) -> dict[str, tuple[Value, ...]]:
    """Return tiles of all sizes on CPUs, and of up to eight blocks on GPUs."""
    most = shape.blocks if device.is_cpu else 8
    return {"tile_k": tile_choices(shape.blocks, most), "group_size": group_sizes(device)}


def match(workload: Workload) -> Shape:
    """Return the shape of samples with elementwise functions around them."""
    anchor = workload.anchor(NAME)
    extents = workload.extents(anchor)
    output = workload.blocks[-1]
    # Other operands of the epilogue, a mask for example, may have other extents: they are inlined.
    elementwise = workload.extents(output) == extents
    if not elementwise or not all(is_injective(workload.sch, b) for b in workload.blocks):
        raise Declined("the blocks after it are not elementwise")
    batch, blocks, height, width, *lanes = extents
    texels = workload.writes_texture(output)
    return Shape(blocks, batch * height * width, lanes[0] if lanes else 1, texels=texels)


def apply(workload: Workload, knobs: Knobs) -> s_tir.Schedule:
    """Tile and vectorise by ``knobs``."""
    sch = workload.sch
    *others, output = workload.blocks
    places = [block for block in others if workload.annotation(block, ROLE) == PLACES]
    workload.inline(*(block for block in others if block not in places))
    n, k, h, w, *lane = sch.get_loops(output)
    k, inner = sch.split(k, [None, knobs.tile_k])
    sch.reorder(n, k, h, w, inner, *lane)
    if workload.is_cpu or not workload.target.is_gpu_kernel:
        workload.bind_outer([n, k, h], knobs.group_size)
        pixel = w
    else:
        pixel = workload.bind_outer([n, k, h, w], knobs.group_size)
        sch.unroll(inner)
    for block in reversed(places):
        workload.unroll_all(workload.compute_in_registers(block, pixel))
    if lane and workload.lanes_of(output):
        sch.vectorize(lane[0])
    return sch
