"""Winograd's convolution: outputs of each tile from its products.

Computes, for tiles of ``m×m`` outputs (``a = m + 2``) in ``R = N * TH`` rows of ``TW``::

    t[a*a, O', R, TW, c]   s[d, q, o, h, w, l] = sum_k AT[d, k] * t[k*a + q, o, h, w, l]
                           z[n, o, y, x, l] = sum_k AT[x % m, k] * s[y % m, k, o, n*TH + y // m,
                                                                     x // m, l]
    y[N, O', H, W, c] = z[:, :, :H, :W, :]

Elementwise operators after it are fused.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from tvm import s_tir, te, tirx

from ..devices.target import Device
from .common import FAMILY, ROLE, Workload
from .family import GROUP_FITS, Constraint, Value, knob
from .tiles import group_sizes, tile_choices, tile_of
from .winograd import TAPS, by_pairs, matrices, row_of, tiles

NAME = "winograd_output"

#: The role of the block that transforms columns.
COLUMNS = "winograd_columns"
#: Block annotation: outputs of a tile in each direction.
OUTPUTS = "tvmflow.winograd_outputs"


# -- what it computes ---------------------------------------------------------------------


def compute(t: te.Tensor, *, outputs: int, height: int, width: int) -> te.Tensor:
    """The outputs as TE; shapes as in the module's docstring."""
    taken = outputs + TAPS - 1
    _, blocks, all_rows, columns, block = (int(d) for d in t.shape)
    rows = tiles(height, outputs)
    batch = all_rows // rows
    at = matrices(outputs).at
    transformed = te.compute(
        (outputs, taken, blocks, all_rows, columns, block),
        lambda d, q, o, h, w, lane: row_of(
            at, d, lambda k: t[k * taken + q, o, h, w, lane], by_pairs
        ),
        name="columns",
        attrs={ROLE: COLUMNS},
    )

    def body(n, o, y, x, lane):  # type: ignore[no-untyped-def]
        h = tirx.floordiv(y, outputs) + n * rows
        d, w, e = tirx.floormod(y, outputs), tirx.floordiv(x, outputs), tirx.floormod(x, outputs)
        return row_of(at, e, lambda k: transformed[d, k, o, h, w, lane], by_pairs)

    shape = (batch, blocks, rows * outputs, columns * outputs, block)
    attrs = {FAMILY: NAME, OUTPUTS: str(outputs)}
    whole = te.compute(shape, body, name="winograd_output", attrs=attrs)
    shape = (batch, blocks, height, width, block)
    return te.compute(shape, whole, name="crop")


# -- its knobs ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Shape:
    """What the knobs depend on: extents that are whole tiles."""

    batch: int
    #: Blocks of output channels.
    blocks: int
    height: int
    width: int
    #: Channels of a block.
    lanes: int
    _: KW_ONLY
    #: Outputs of a tile in each direction.
    outputs: int


@dataclass(frozen=True)
class Knobs:
    """What a work-item transforms."""

    tile_w: int = knob("Tiles of a row that a work-item transforms, one after the other.")
    group_size: int = knob("Work-items of a work-group, at most.")


CONSTRAINTS = (
    Constraint(
        "tile_w is at most the tiles in a row.",
        lambda k, s, d: k.tile_w <= s.width // s.outputs,
    ),
    GROUP_FITS,
)


def heuristic(shape: Shape, device: Device) -> Knobs:
    """A row of tiles on a CPU; one tile on a GPU, where its values fill the registers."""
    tile_w = tile_of(shape.width // shape.outputs, 8) if device.is_cpu else 1
    return Knobs(tile_w, device.group_size)


def space(shape: Shape, device: Device) -> dict[str, tuple[Value, ...]]:
    """All sensible lengths of a row."""
    limit = 16 if device.is_cpu else 2
    return {
        "tile_w": tile_choices(shape.width // shape.outputs, limit),
        "group_size": group_sizes(device),
    }


# -- how it is scheduled ------------------------------------------------------------------


def match(workload: Workload) -> Shape | None:
    """The shape of a function whose anchor is this family's block."""
    anchor = workload.anchor(NAME)
    if anchor is None:
        return None
    outputs = int(workload.annotation(anchor, OUTPUTS) or 1)
    return Shape(*workload.extents(anchor), outputs=outputs)


def apply(workload: Workload, knobs: Knobs) -> s_tir.Schedule:
    """Transform tile by tile, and write what lies inside the output."""
    sch = workload.sch
    anchor = workload.anchor(NAME)
    outputs = int(workload.annotation(anchor, OUTPUTS) or 1)
    columns = next(b for b in workload.blocks if workload.annotation(b, ROLE) == COLUMNS)
    texels = workload.stage_texels(columns, 0, None)
    output = workload.merge_epilogue(anchor)
    n, o, y, x, lane = sch.get_loops(anchor)
    h, hi = sch.split(y, [None, outputs])
    w, wi, xi = sch.split(x, [None, knobs.tile_w, outputs])
    sch.reorder(n, o, h, w, wi, hi, xi, lane)
    workload.bind_outer([n, o, h, w], knobs.group_size)
    sch.compute_at(columns, wi)
    sch.set_scope(columns, 0, "local")
    d, q, *_, lanes = workload.loops_below(columns, wi)
    sch.reorder(q, d)
    if texels is not None:
        workload.place_staged(texels, q)
    workload.vectorize_last([q, d, lanes])
    # The tile is whole in private memory; only what is written is tested against the extents.
    sch.reverse_compute_at(output, wi)
    workload.vectorize_last(workload.loops_below(output, wi))
    workload.vectorize_last([hi, xi, lane])
    if not workload.is_cpu:
        workload.unroll_all([wi])
    return sch
