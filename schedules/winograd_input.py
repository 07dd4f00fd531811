"""Winograd's convolution: tiles of the input, transformed.

Computes, for tiles of ``m×m`` outputs (``a = m + 2``) in ``R = N * TH`` rows of ``TW``::

    x[N, I', H, W, c]   r[p, n, i, h, x, l] = sum_k BT[p, k] * x[n, i, h*m + k, x, l]
                        v[p*a + q, i, n*TH + h, w, l] = sum_k BT[q, k] * r[p, n, i, h, w*m + k, l]

Columns are transformed once for the tiles that share them.  Only lanes that hold channels are
meant by what is written: :mod:`.winograd_product` reads no other.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from tvm import s_tir, te, tirx

from ..devices.target import Device
from .common import FAMILY, ROLE, Workload
from .family import GROUP_FITS, Constraint, Value, knob
from .tiles import group_sizes, tile_choices, tile_of
from .windows import pad_spatial
from .winograd import TAPS, by_parity, matrices, row_of, tiles

NAME = "winograd_input"

#: The role of the block that transforms columns.
COLUMNS = "winograd_columns"


# -- what it computes ---------------------------------------------------------------------


def compute(x: te.Tensor, *, outputs: int, padding: tuple[int, int, int, int]) -> te.Tensor:
    """The transformed tiles as TE; shapes as in the module's docstring."""
    batch, blocks, height, width, block = (int(d) for d in x.shape)
    taken = outputs + TAPS - 1
    top, left, bottom, right = padding
    rows = tiles(height + top + bottom - TAPS + 1, outputs)
    columns = tiles(width + left + right - TAPS + 1, outputs)
    # The last tiles are whole, too.
    bottom = rows * outputs + TAPS - 1 - height - top
    right = columns * outputs + TAPS - 1 - width - left
    padded = pad_spatial(x, (top, left, bottom, right))
    bt = matrices(outputs).bt
    transformed = te.compute(
        (taken, batch, blocks, rows, padded.shape[3], block),
        lambda p, n, i, h, w, lane: row_of(
            bt, p, lambda k: padded[n, i, h * outputs + k, w, lane], by_parity
        ),
        name="columns",
        attrs={ROLE: COLUMNS},
    )

    def body(point, i, h, w, lane):  # type: ignore[no-untyped-def]
        p, q = tirx.floordiv(point, taken), tirx.floormod(point, taken)
        n, row = (0, h) if batch == 1 else (tirx.floordiv(h, rows), tirx.floormod(h, rows))
        return row_of(bt, q, lambda k: transformed[p, n, i, row, w * outputs + k, lane], by_parity)

    shape = (taken * taken, blocks, batch * rows, columns, block)
    return te.compute(shape, body, name="winograd_input", attrs={FAMILY: NAME})


# -- its knobs ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Shape:
    """What the knobs depend on."""

    #: Products of a tile: ``a * a``.
    points: int
    #: Blocks of input channels.
    inputs: int
    #: Rows of tiles, and tiles in a row.
    rows: int
    columns: int
    #: Channels of a block.
    lanes: int
    _: KW_ONLY
    padded: bool
    texture: bool


@dataclass(frozen=True)
class Knobs:
    """What a work-item transforms."""

    tile_w: int = knob("Tiles of a row that a work-item transforms, one after the other.")
    stage_input: bool = knob("Copy the inputs of these tiles to private memory first.")
    group_size: int = knob("Work-items of a work-group, at most.")


CONSTRAINTS = (
    Constraint("tile_w is at most the tiles in a row.", lambda k, s, d: k.tile_w <= s.columns),
    Constraint(
        "Where a padded input is read from a texture or by a CPU, it is staged: "
        "bounds are tested once.",
        lambda k, s, d: k.stage_input or not (s.padded and (s.texture or d.is_cpu)),
    ),
    GROUP_FITS,
)


def heuristic(shape: Shape, device: Device) -> Knobs:
    """A row of tiles on a CPU; one tile on a GPU, where its values fill the registers."""
    tile_w = tile_of(shape.columns, 8) if device.is_cpu else 1
    return Knobs(tile_w, shape.padded or shape.texture, device.group_size)


def space(shape: Shape, device: Device) -> dict[str, tuple[Value, ...]]:
    """All sensible lengths of a row."""
    return {
        "tile_w": tile_choices(shape.columns, 16 if device.is_cpu else 2),
        "stage_input": (True, False),
        "group_size": group_sizes(device),
    }


# -- how it is scheduled ------------------------------------------------------------------


def match(workload: Workload) -> Shape | None:
    """The shape of a function whose anchor is this family's block."""
    anchor = workload.anchor(NAME)
    if anchor is None:
        return None
    pad = workload.padding()
    reads = workload.reads_texture(_columns(workload) if pad is None else pad, 0)
    return Shape(*workload.extents(anchor), padded=pad is not None, texture=reads)


def _columns(workload: Workload) -> s_tir.schedule.SBlockRV:
    return next(b for b in workload.blocks if workload.annotation(b, ROLE) == COLUMNS)


def apply(workload: Workload, knobs: Knobs) -> s_tir.Schedule:
    """Transform columns of a run of tiles, then their rows, by ``knobs``."""
    sch = workload.sch
    anchor, columns, pad = workload.anchor(NAME), _columns(workload), workload.padding()
    points = workload.extents(anchor)[0]
    taken = round(points**0.5)
    staged = pad
    if pad is None and knobs.stage_input:
        staged = sch.cache_read(columns, 0, "local")
    elif pad is not None and not knobs.stage_input:
        workload.inline(pad)
    point, i, h, w, lane = sch.get_loops(anchor)
    p, q = sch.split(point, [taken, taken])
    w, wi = sch.split(w, [None, knobs.tile_w])
    sch.reorder(i, h, w, wi, p, q, lane)
    item = workload.bind_outer([i, h, w], knobs.group_size)
    sch.compute_at(columns, item)
    sch.set_scope(columns, 0, "local")
    of_columns = workload.loops_below(columns, item)
    # p is the first loop that is left; the columns follow, then lanes.
    row, *along, lanes = of_columns
    sch.reorder(*along, row, lanes)
    workload.vectorize_last([row, lanes])
    if staged is not None and knobs.stage_input:
        sch.compute_at(staged, along[-1] if along else item)
        sch.set_scope(staged, 0, "local")
        workload.vectorize_last(workload.loops_below(staged, along[-1] if along else item))
    if not workload.is_cpu:
        workload.unroll_all(along)
    workload.vectorize_last([*([] if workload.is_cpu else [wi]), p, q, lane])
    return sch
