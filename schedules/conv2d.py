"""Convolution over the blocked layout ``NCHW{c}c``, direct, any kernel size.

Computes, with ``c`` lanes a block and ``C' = ceil(C / c)``::

    x[N, I', H, W, c]  (or plain x[N, I, H, W])     w[O', I/groups, KH, KW, c]
    y[n, o', h, w, o] = sum_{i, p, q} x[n, i // c, h*s + p*d, w*s + q*d, i % c] * w[o', i, p, q, o]

Of 8-bit numbers, ``x`` and ``w`` hold four input channels in each element (:mod:`.integers`),
``x`` has ``c / 4`` lanes, and products are dot products.

The sum runs over the real input channels only: whatever stands in the padding
lanes of ``x`` is never read.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass

from tvm import s_tir, te, tirx

from ..codegen.loop_peeling import PRAGMA as BORDERS
from ..devices.target import Device
from .common import FAMILY, Multiply, Workload, narrowed, widened
from .conv2d_shape import GROUP_BLOCKS, TILE_CONSTRAINTS, WEIGHT_CONSTRAINTS, WEIGHTS, Shape
from .family import Value, knob
from .sharing import share, to_constant_memory
from .tiles import divisors, largest_divisor, tile_choices, tile_of
from .windows import WINDOW_CONSTRAINTS, group_form, pad_spatial, stage_padded, window_space

NAME = "conv2d"


# -- what it computes ---------------------------------------------------------------------


def compute(
    x: te.Tensor,
    w: te.Tensor,
    *,
    strides: tuple[int, int],
    padding: tuple[int, int, int, int],
    dilation: tuple[int, int],
    groups: int,
    sums: str | None = None,
    multiply: Multiply = operator.mul,
) -> te.Tensor:
    """The convolution as TE; shapes as in the module's docstring.

    With ``groups > 1`` the output channels of a group must be a multiple of the
    block, so that all lanes of an output vector read the same input channels.

    ``sums`` is the dtype of products and sums where it is another than the tensors',
    ``multiply`` what makes products.
    """
    outputs, inputs, kernel_h, kernel_w, block = (int(d) for d in w.shape)
    blocked = len(x.shape) == 5
    lanes = int(x.shape[-1])
    padded = pad_spatial(x, padding)
    out_h = (int(padded.shape[2]) - dilation[0] * (kernel_h - 1) - 1) // strides[0] + 1
    out_w = (int(padded.shape[3]) - dilation[1] * (kernel_w - 1) - 1) // strides[1] + 1
    outputs_per_group = outputs // groups
    i = te.reduce_axis((0, inputs), name="i")
    p = te.reduce_axis((0, kernel_h), name="p")
    q = te.reduce_axis((0, kernel_w), name="q")

    def body(n, oo, h, v, o):  # type: ignore[no-untyped-def]
        channel = i if groups == 1 else tirx.floordiv(oo, outputs_per_group) * inputs + i
        row, column = h * strides[0] + p * dilation[0], v * strides[1] + q * dilation[1]
        if blocked:
            lane = tirx.floormod(channel, lanes)
            value = padded[n, tirx.floordiv(channel, lanes), row, column, lane]
        else:
            value = padded[n, channel, row, column]
        product = multiply(narrowed(value, sums), narrowed(w[oo, i, p, q, o], sums))
        return te.sum(product, axis=[i, p, q])

    shape = (x.shape[0], outputs, out_h, out_w, block)
    attrs = {FAMILY: NAME, **({GROUP_BLOCKS: str(outputs_per_group)} if groups > 1 else {})}
    return widened(te.compute(shape, body, name="conv2d", attrs=attrs), x.dtype)


# -- its knobs ----------------------------------------------------------------------------

#: Vector products that may be unrolled in the innermost loop that is left.
UNROLLED_PRODUCTS = 768


@dataclass(frozen=True)
class Knobs:
    """What a work-item computes and how far its loops are unrolled."""

    tile_o: int = knob("Blocks of output channels that a work-item keeps in registers.")
    tile_h: int = knob("Rows of the map that it keeps in registers.")
    tile_w: int = knob("Columns of the map that it keeps in registers.")
    unroll_i: int = knob("Input channels multiplied per iteration of the innermost loop left.")
    stage_input: bool = knob("Copy the padded input tile to private memory before it is used.")
    split_borders: bool = knob(
        "Compile the body twice, without tests for work-groups whose inputs are all inside."
    )
    weights: str = knob(
        "Where they are read: direct (as they are stored), local (copied to local memory by the "
        "whole group) or constant (from constant memory)."
    )
    group_w: int = knob("Work-items of a work-group along the width, at most.")
    group_size: int = knob("Work-items of a work-group, at most.")


CONSTRAINTS = (
    *TILE_CONSTRAINTS,
    *WEIGHT_CONSTRAINTS,
    *WINDOW_CONSTRAINTS,
)


def heuristic(shape: Shape, device: Device) -> Knobs:
    """Wide tiles, then more rows or output blocks while registers are free."""
    tile_o, tile_h, tile_w = (_cpu_tile if device.is_cpu else _gpu_tile)(shape, device)
    # Unrolling pays where little else is: in narrow maps, and where registers are few.
    deep = 4 if not device.is_cpu or shape.width <= 7 else 1
    unroll_i = largest_divisor(shape.together, deep)
    group_w, split = group_form(shape, tile_w, device)
    stage, size = device.stage_input, device.group_size
    return Knobs(tile_o, tile_h, tile_w, unroll_i, stage, split, "direct", group_w, size)


def _cpu_tile(shape: Shape, device: Device) -> tuple[int, int, int]:
    """Two blocks by some seven columns: half the registers, so that none of the rest spills.

    More accumulators need fewer loads for each product, but what a compiler adds to them
    does not fit any more; see the sweep in ``docs/performance.md``.
    """
    tile_o = largest_divisor(shape.tiled_blocks, 2)
    tile_w = tile_of(shape.width, 8 if tile_o > 1 else device.accumulators // 2)
    most = 16 if tile_o > 1 or shape.dots else device.accumulators
    rest = max(1, most // (tile_o * tile_w))
    return tile_o, largest_divisor(shape.height, rest) if shape.is_pointwise else 1, tile_w


def _gpu_tile(shape: Shape, device: Device) -> tuple[int, int, int]:
    tile_w = tile_of(shape.width, max(1, device.accumulators // 2))
    rest = max(1, device.accumulators // tile_w)
    # Narrow maps leave registers free: use them for more rows of a pointwise convolution, which
    # share its weights, else for more output blocks, which share its inputs.
    tile_h = largest_divisor(shape.height, rest) if shape.is_pointwise else 1
    return largest_divisor(shape.tiled_blocks, max(1, min(2, rest // tile_h))), tile_h, tile_w


def space(shape: Shape, device: Device) -> dict[str, tuple[Value, ...]]:
    """Tiles of every form that fits, deeper unrolling, and work-groups around the preset's."""
    rows, columns = divisors(shape.height, 8), tile_choices(shape.width, device.accumulators)
    return {
        "tile_o": divisors(shape.tiled_blocks, 4),
        "tile_h": rows,
        "tile_w": columns,
        "unroll_i": divisors(shape.together, 16),
        "weights": ("direct",) if device.is_cpu else WEIGHTS,
        **window_space(shape, device),
    }


# -- how it is scheduled ------------------------------------------------------------------


def match(workload: Workload) -> Shape | None:
    """The shape of a function whose anchor is this family's block."""
    anchor = workload.anchor(NAME)
    return None if anchor is None else Shape.of(workload, anchor)


def apply(workload: Workload, knobs: Knobs) -> s_tir.Schedule | None:
    """Tile, stage and vectorise by ``knobs``; nothing where these do not fit."""
    sch = workload.sch
    anchor, pad = workload.anchor(NAME), workload.padding()
    shape = Shape.of(workload, anchor)
    weight_source = sch.get(anchor).reads[1].source
    texels = workload.stage_texels(anchor, 0, pad)
    weights = workload.stage_weights(anchor, 1) if knobs.weights == "direct" else None
    output = workload.merge_epilogue(anchor)
    n, o, h, w, lane = sch.get_loops(output)
    o, oi = sch.split(o, [None, knobs.tile_o])
    h, hi = sch.split(h, [None, knobs.tile_h])
    w, wi = sch.split(w, [None, knobs.tile_w])
    sch.reorder(n, o, h, w, oi, hi, wi, lane)
    item = workload.bind_outer([n, o, h, w], knobs.group_size, knobs.group_w)
    sch.compute_at(anchor, item, preserve_unit_loops=True)
    if knobs.split_borders:
        sch.annotate(item, BORDERS, 1)

    *tile, i, p, q = workload.loops_below(anchor, item)
    # Lanes of one input block stay together, so that its tile can be staged as whole vectors.
    lanes = shape.together
    unroll_i = knobs.unroll_i
    if texels is not None:
        # Whole texels, also the last one: products of channels that it lacks are left out.
        lanes = unroll_i = shape.input_block
    i_block, i_lane = sch.split(i, [None, lanes])
    i_outer, i_inner = sch.split(i_lane, [None, unroll_i])
    sch.reorder(i_block, p, q, i_outer, i_inner, *tile)
    if texels is not None:
        # A row of texels serves every column of the kernel, if the code does not grow too much.
        columns = int(sch.get(q).extent)
        row = columns * lanes * knobs.tile_o * knobs.tile_h * knobs.tile_w <= UNROLLED_PRODUCTS
        if row:
            workload.unroll_all([q, i_outer])
        workload.place_staged(texels, p if row else q)
    elif pad is not None and knobs.stage_input:
        stage_padded(workload, pad, i_block)
    elif pad is not None:
        workload.inline(pad)
    if weights is not None:
        workload.place_staged(weights, i_outer)
    if knobs.weights == "local":
        share(workload, anchor, 1, i_block)
    workload.unroll_all([i_inner])
    workload.vectorize_last(tile)
    init = sch.decompose_reduction(anchor, i_block)
    workload.vectorize_last(workload.loops_below(init, item))
    workload.vectorize_last([oi, hi, wi, lane])
    if knobs.weights == "constant":
        # They may be computed: bytes less their zero point, for example.
        return to_constant_memory(sch, weight_source)
    return sch
