"""Grouped convolution whose groups do not fill blocks of output channels.

With ``G`` groups of ``g`` inputs and ``f`` outputs each::

    x[N, I', H, W, c]   w[O', g, KH, KW, c]
    k = (o' * c + o) // f * g + i                 (the group's input channel i)
    y[n, o', h, w, o] = sum_{i, p, q} x[n, k // c, h*s + p*d, w*s + q*d, k % c] * w[o', i, p, q, o]

Lanes of an output block belong to different groups and read different channels.  Runs
of ``gcd(f, c)`` lanes share theirs and are multiplied as a vector.  On CPUs, groups that would
have many such runs are padded to whole blocks instead, and use :mod:`.conv2d`.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from math import gcd

from tvm import s_tir, te, tirx

from ..devices.target import Device
from .common import FAMILY, Workload
from .conv2d import TILE_IN_MAP, UNROLL_DIVIDES
from .definitions import Channel, Sums, convolution, pad_spatial
from .family import Value, knob
from .sizes import divisors, input_lanes, largest_divisor, tile_choices, tile_of
from .work_groups import GROUP_CONSTRAINTS, WorkGroup, group_of, group_space

NAME = "grouped"
ORDER = 330

#: Block annotation: how many lanes of a vector read the same input channels.
SHARED = "tvmflow.shared_lanes"
#: Block annotation of transposed convolutions: the strides of rows and columns.
STRIDES = "tvmflow.strides"


def channels_read(groups: int, inputs: int, outputs: int, block: int) -> tuple[Channel, int]:
    """Return the function from a lane to its input channel, and how many lanes share theirs.

    ``inputs`` and ``outputs`` are those of one group.
    """
    if groups > 1 and inputs == outputs == 1:
        # With one filter for each channel, every lane reads its own.
        return lambda oo, o, i: (oo, o), block
    shared = block if groups == 1 else gcd(outputs, block)

    def read(oo, o, i):  # type: ignore[no-untyped-def]
        channel = i
        if groups > 1:
            run = oo * (block // shared)
            if shared < block:
                run = run + tirx.floordiv(o, shared)
            channel = tirx.floordiv(run, outputs // shared) * inputs + i
            if groups * outputs % block:
                # Padding lanes belong to no group: they read the last group's channel.
                channel = tirx.min(channel, groups * inputs - 1)
        return tirx.floordiv(channel, block), tirx.floormod(channel, block)

    return read, shared


def compute(
    x: te.Tensor,
    w: te.Tensor,
    outputs: int,
    *,
    strides: tuple[int, int],
    padding: tuple[int, int, int, int],
    dilation: tuple[int, int],
    groups: int,
    sums: Sums = None,
) -> te.Tensor:
    """Return the convolution with ``outputs`` channels as TE; the module has the shapes."""
    channel, shared = channels_read(groups, int(w.shape[1]), outputs // groups, int(w.shape[-1]))
    attrs = {FAMILY: NAME, SHARED: str(shared)}
    return convolution(pad_spatial(x, padding), w, channel, strides, dilation, attrs, sums=sums)


@dataclass(frozen=True)
class Shape:
    """Loop extents and shared lanes of a convolution, grouped or transposed."""

    batch: int
    #: Blocks of output channels.
    outputs: int
    height: int
    width: int
    #: Channels in a block.
    lanes: int
    #: Input channels of a group, and the taps that are tried for an output.
    inputs: int
    taps_h: int
    taps_w: int
    _: KW_ONLY
    #: Lanes of a vector that read the same input channels.
    shared: int
    #: Strides of a transposed convolution; 1 for others.
    stride_h: int
    stride_w: int

    @property
    def input_lanes(self) -> int:
        """Return the input channels that each step of the sum takes from one block."""
        return input_lanes(self.inputs, self.lanes)


@dataclass(frozen=True)
class Knobs(WorkGroup):
    """Knobs of a work-item's tile, computed one block of output channels at a time."""

    tile_h: int = knob("Rows of the map that a work-item keeps in registers.")
    tile_w: int = knob("Columns of the map that a work-item keeps in registers.")
    unroll_i: int = knob("Input channels multiplied per iteration of the innermost remaining loop.")
    unroll_window: bool = knob("Unroll the loops over the window.")


CONSTRAINTS = {
    "tile_h * tile_w vectors must fit twice the device's registers.": lambda k, s, d: (
        k.tile_h * k.tile_w <= 2 * d.accumulators
    ),
    **TILE_IN_MAP,
    **UNROLL_DIVIDES,
    "A window of more than 16 taps is not unrolled.": lambda k, s, d: (
        not k.unroll_window or s.taps_h * s.taps_w <= 16
    ),
    **GROUP_CONSTRAINTS,
}


def heuristic(shape: Shape, device: Device) -> Knobs:
    """Return a row of the map in registers; small windows are unrolled."""
    tile_w = tile_of(shape.width, max(1, device.accumulators // 2))
    unroll_i = largest_divisor(shape.input_lanes, 4)
    tiles = shape.batch * shape.outputs, shape.height, -(-shape.width // tile_w)
    unroll_window = shape.taps_h * shape.taps_w <= 4
    return Knobs(*group_of(tiles, device, device.convolution), 1, tile_w, unroll_i, unroll_window)


def space(shape: Shape, device: Device) -> dict[str, tuple[Value, ...]]:
    """Return tiles and unrolling around the heuristic's."""
    return {
        "tile_h": tuple(sorted({1, min(2, shape.height), min(shape.stride_h, shape.height)})),
        "tile_w": tile_choices(shape.width, 2 * device.accumulators),
        "unroll_i": divisors(shape.input_lanes, 8),
        "unroll_window": (True, False),
        **group_space(shape.outputs, shape.height, shape.width, device),
    }


def match(workload: Workload, family: str = NAME) -> Shape:
    """Return the shape of a function whose anchor is a family's block."""
    anchor = workload.anchor(family)
    shared = int(workload.annotation(anchor, SHARED) or 1)
    stride_h, stride_w = map(int, (workload.annotation(anchor, STRIDES) or "1,1").split(","))
    extents = workload.extents(anchor)
    return Shape(*extents, shared=shared, stride_h=stride_h, stride_w=stride_w)


def apply(workload: Workload, knobs: Knobs, family: str = NAME) -> s_tir.Schedule:
    """Tile and vectorise by ``knobs``, also for transposed convolutions."""
    sch, anchor = workload.sch, workload.anchor(family)
    run_lanes, pad = int(workload.annotation(anchor, SHARED) or 1), workload.padding()
    block, inputs = workload.extents(anchor)[4:6]
    # Lanes that read different channels load them one by one: a copy would hold all channels.
    shared = run_lanes == block
    texels = workload.stage_texels(anchor, 0, pad) if shared else None
    stage_pad = pad is not None and shared and workload.target.device.stage_input
    if pad is not None and texels is None and not stage_pad:
        workload.inline(pad)
    weights = workload.stage_weights(anchor, 1)
    output = workload.merge_epilogue(anchor)
    item, inner = workload.tile(output, (0, 0, knobs.tile_h, knobs.tile_w), knobs.group)
    sch.compute_at(anchor, item, preserve_unit_loops=True)
    workload.sum_whole_tiles(anchor, texels, weights)
    *tile, lanes, i, p, q = workload.loops_below(anchor, item)
    taken, unroll_i = input_lanes(inputs, block), knobs.unroll_i
    if texels is not None and inputs > 1:
        # Texels are read whole, also the last one; products of its missing channels are left out.
        taken = unroll_i = block
    runs, run = sch.split(lanes, [None, run_lanes])
    below = [*tile, runs, run]
    i_block, i_outer, i_inner = workload.split_channels(i, taken, unroll_i, [p, q], below)
    if texels is not None:
        # A row of texels serves every column of the kernel.
        workload.unroll_all([i_outer])
        workload.place_staged(texels, p if knobs.unroll_window else q)
    elif stage_pad:
        workload.stage_padded(pad, i_block)
    workload.place_staged(weights, i_outer)
    workload.unroll_all([i_inner, *tile, runs])
    if knobs.unroll_window:
        workload.unroll_all([p, q])
    vectorize = sch.vectorize if run_lanes > 1 else sch.unroll
    vectorize(run)
    init = sch.decompose_reduction(anchor, i_block)
    # The initialisation stores the runs of lanes as one vector of zeros.
    *outer, run = workload.loops_below(init, item)
    workload.unroll_all(outer)
    vectorize(run)
    workload.vectorize_last(inner)
    return sch
