"""Winograd's convolution: ``a*a`` products of matrices, one for each point of a tile.

Computes, over tiles in rows and columns::

    v[a*a, I', R, T, c]   u[a*a, O', I, c]
    t[k, o', h, w, o] = sum_i v[k, i // c, h, w, i % c] * u[k, o', i, o]

The sum runs over the real input channels only: padding lanes of ``v`` are never read.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from tvm import s_tir, te, tirx

from ..devices.target import Device
from .common import FAMILY, Workload
from .conv2d_shape import TILE_FITS, input_lanes
from .family import GROUP_FITS, Constraint, Value, knob
from .tiles import divisors, group_sizes, largest_divisor, tile_choices, tile_of

NAME = "winograd_product"


# -- what it computes ---------------------------------------------------------------------


def compute(v: te.Tensor, u: te.Tensor) -> te.Tensor:
    """The products as TE; shapes as in the module's docstring."""
    points, outputs, inputs, block = (int(d) for d in u.shape)
    i = te.reduce_axis((0, inputs), name="i")
    return te.compute(
        (points, outputs, v.shape[2], v.shape[3], block),
        lambda k, oo, h, w, o: te.sum(
            v[k, tirx.floordiv(i, block), h, w, tirx.floormod(i, block)] * u[k, oo, i, o], axis=i
        ),
        name="winograd_product",
        attrs={FAMILY: NAME},
    )


# -- its knobs ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Shape:
    """What the knobs depend on."""

    #: Products of a tile: ``a * a``.
    points: int
    #: Blocks of output channels.
    outputs: int
    #: Rows of tiles, and tiles in a row.
    rows: int
    columns: int
    #: Channels of a block.
    lanes: int
    #: Input channels.
    inputs: int
    _: KW_ONLY
    texture: bool


@dataclass(frozen=True)
class Knobs:
    """The register tile of a work-item."""

    tile_o: int = knob("Blocks of output channels that a work-item keeps in registers.")
    tile_h: int = knob("Rows of tiles that it keeps in registers.")
    tile_w: int = knob("Tiles of a row that it keeps in registers.")
    unroll_i: int = knob("Input channels multiplied per iteration of the innermost loop left.")
    group_size: int = knob("Work-items of a work-group, at most.")


CONSTRAINTS = (
    TILE_FITS,
    Constraint(
        "tile_o must divide the output blocks and tile_h the rows: "
        "a partial tile there is a test in the hot loop.",
        lambda k, s, d: s.outputs % k.tile_o == 0 and s.rows % k.tile_h == 0,
    ),
    Constraint("tile_w is at most the tiles in a row.", lambda k, s, d: k.tile_w <= s.columns),
    Constraint(
        "unroll_i must divide the input channels that are taken together.",
        lambda k, s, d: input_lanes(s.inputs, s.lanes) % k.unroll_i == 0,
    ),
    GROUP_FITS,
)


def heuristic(shape: Shape, device: Device) -> Knobs:
    """Some tiles of a row and blocks of outputs, which share them, then more rows.

    On a CPU half of the registers do: 2 blocks and 7 tiles are as fast with OpenCL as 4 and 7,
    which are 3 times slower with LLVM, where they leave no register for weights.
    """
    width, budget = (7, 16) if device.is_cpu else (4, device.accumulators)
    tile_w = tile_of(shape.columns, min(width, device.accumulators))
    tile_o = largest_divisor(shape.outputs, max(1, min(4, budget // tile_w)))
    tile_h = largest_divisor(shape.rows, max(1, budget // (tile_w * tile_o)))
    unroll_i = 1 if device.is_cpu else largest_divisor(input_lanes(shape.inputs, shape.lanes), 4)
    return Knobs(tile_o, tile_h, tile_w, unroll_i, device.group_size)


def space(shape: Shape, device: Device) -> dict[str, tuple[Value, ...]]:
    """Tiles of every form that fits, deeper unrolling, and work-groups around the preset's."""
    return {
        "tile_o": divisors(shape.outputs, 8),
        "tile_h": divisors(shape.rows, 8),
        "tile_w": tile_choices(shape.columns, device.accumulators),
        "unroll_i": divisors(input_lanes(shape.inputs, shape.lanes), 16),
        "group_size": group_sizes(device),
    }


# -- how it is scheduled ------------------------------------------------------------------


def match(workload: Workload) -> Shape | None:
    """The shape of a function whose anchor is this family's block."""
    anchor = workload.anchor(NAME)
    if anchor is None:
        return None
    return Shape(*workload.extents(anchor), texture=workload.reads_texture(anchor, 0))


def apply(workload: Workload, knobs: Knobs) -> s_tir.Schedule:
    """Tile and vectorise by ``knobs``."""
    sch = workload.sch
    anchor = workload.anchor(NAME)
    block, inputs = workload.extents(anchor)[4:]
    texels = workload.stage_texels(anchor, 0, None)
    weights = workload.stage_weights(anchor, 1)
    output = workload.merge_epilogue(anchor)
    k, o, h, w, lane = sch.get_loops(output)
    o, oi = sch.split(o, [None, knobs.tile_o])
    h, hi = sch.split(h, [None, knobs.tile_h])
    w, wi = sch.split(w, [None, knobs.tile_w])
    sch.reorder(k, o, h, w, oi, hi, wi, lane)
    item = workload.bind_outer([k, o, h, w], knobs.group_size)
    sch.compute_at(anchor, item, preserve_unit_loops=True)
    *tile, i = workload.loops_below(anchor, item)
    taken, unroll_i = input_lanes(inputs, block), knobs.unroll_i
    if texels is not None:
        # Whole texels, also the last one: products of channels that it lacks are left out.
        taken = unroll_i = block
    i_block, i_lane = sch.split(i, [None, taken])
    i_outer, i_inner = sch.split(i_lane, [None, unroll_i])
    sch.reorder(i_block, i_outer, i_inner, *tile)
    if texels is not None:
        workload.place_staged(texels, i_outer)
    if weights is not None:
        workload.place_staged(weights, i_outer)
    workload.unroll_all([i_inner])
    workload.vectorize_last(tile)
    init = sch.decompose_reduction(anchor, i_block)
    workload.vectorize_last(workload.loops_below(init, item))
    workload.vectorize_last([oi, hi, wi, lane])
    return sch
