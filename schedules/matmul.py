"""Products of two computed matrices, of any batch, staged in local memory.

Before padding::

    x[.., M, K]   w[.., K, N]      y[.., m, n] = sum_k x[.., m, k] * w[.., k, n]

Rows, columns and depth are padded to whole tiles (:func:`padded`), so that the hot loop has no
tests: the blocks that pad are the copies of tiles that a work-group makes::

    left[.., M', K']   right[.., K', N']    product[.., M', N']    y = product[.., :M, :N]

A work-group multiplies a tile of rows with a tile of columns, in steps over K; each of its items
keeps ``tile_m`` rows of ``tile_n`` vectors in registers.  This is for GPUs: a CPU packs the
right operand first and multiplies as :mod:`.dense` does.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log2, prod

from tvm import s_tir, te

from ..devices.target import Device
from .common import FAMILY, ROLE, Workload, is_vector
from .definitions import batch_shape, padded_matrix
from .family import Value, knob
from .sizes import FULL, LOCAL_BYTES, divisors, lanes_filled, largest_divisor

NAME = "matmul"
ORDER = 420
LEFT, RIGHT = "matmul_left", "matmul_right"

#: Lanes of the vectors of columns.
LANES = 4
#: Rows and columns are padded to a multiple of one of these: small matrices to a small one.
UNITS = (4, 8, 16, 32)
#: The depth is padded to a multiple of this.
DEPTH = 8


def padded(extent: int) -> int:
    """Return rows or columns in whole tiles: the unit is at most an eighth of them, or 4."""
    unit = max(u for u in UNITS if u == UNITS[0] or 8 * u <= extent)
    return -(-extent // unit) * unit


def compute(x: te.Tensor, w: te.Tensor) -> te.Tensor:
    """Return ``x[.., M, K] @ w[.., K, N]``, whose leading axes broadcast as in NumPy."""
    rows, depth, columns = (int(d) for d in (*x.shape[-2:], w.shape[-1]))
    lead = batch_shape(x, w)
    high, wide, deep = padded(rows), padded(columns), -(-depth // DEPTH) * DEPTH
    left = padded_matrix(x, lead, (high, deep), LEFT)
    right = padded_matrix(w, lead, (deep, wide), RIGHT)
    k = te.reduce_axis((0, deep), name="k")

    def product(*index):  # type: ignore[no-untyped-def]
        *batch, m, n = index
        return te.sum(left(*batch, m, k) * right(*batch, k, n), axis=k)

    full = te.compute((*lead, high, wide), product, name="matmul", attrs={FAMILY: NAME})
    return te.compute((*lead, rows, columns), full, name="crop")


@dataclass(frozen=True)
class Shape:
    """Extents after padding."""

    batch: int
    rows: int
    columns: int
    depth: int


@dataclass(frozen=True)
class Knobs:
    """Knobs of the tile of a work-item, and of a work-group's items."""

    tile_m: int = knob("Rows that a work-item keeps in registers.")
    tile_n: int = knob("Vectors of columns that a work-item keeps in registers.")
    group_m: int = knob("Work-items of a work-group along the rows.")
    group_n: int = knob("Work-items of a work-group along the columns.")
    tile_k: int = knob("Depth of the tiles that a work-group copies to local memory at once.")


CONSTRAINTS = {
    "tile_m * tile_n vectors must fit the device's registers.": lambda k, s, d: (
        k.tile_m * k.tile_n <= d.accumulators
    ),
    "tile_m * group_m must divide the padded rows, "
    "and tile_n * group_n vectors the columns.": lambda k, s, d: (
        s.rows % (k.tile_m * k.group_m) == 0 and s.columns % (LANES * k.tile_n * k.group_n) == 0
    ),
    "tile_k must divide the padded depth.": lambda k, s, d: s.depth % k.tile_k == 0,
    "group_m * group_n is at most what the device accepts.": lambda k, s, d: (
        k.group_m * k.group_n <= d.max_group_size
    ),
    "The tiles of both operands must fit local memory of 32 KiB.": lambda k, s, d: _fits(k),
}


def heuristic(shape: Shape, device: Device) -> Knobs:
    """Return square tiles of a work-item, and nearly square groups that fill their waves.

    A matrix of few columns has groups of many rows, and smaller tiles if these groups still leave
    lanes of their waves idle.
    """
    vectors = shape.columns // LANES
    tile_n = largest_divisor(vectors, 2 if device.accumulators >= 16 else 1)
    tallest = largest_divisor(shape.rows, max(1, min(8, device.accumulators // tile_n // 2)))
    tile_k = largest_divisor(shape.depth, 16)
    most = min(device.max_group_size, max(device.group_size, 16))

    def filled(knobs: Knobs) -> float:
        tiles = shape.rows // knobs.tile_m, vectors // knobs.tile_n
        return lanes_filled(tiles, (knobs.group_m, knobs.group_n), device.wave)

    def worth(knobs: Knobs) -> tuple[bool, float, float]:
        size = abs(log2(knobs.group_m * knobs.group_n / most))
        return filled(knobs) >= FULL, -size, -abs(log2(knobs.group_m / knobs.group_n))

    def with_group(tile_m: int, limit: int) -> Knobs:
        found = [
            Knobs(tile_m, tile_n, group_m, group_n, tile_k)
            for group_m in divisors(shape.rows // tile_m, limit)
            for group_n in divisors(vectors // tile_n, limit)
            if group_m * group_n <= min(4 * most, device.max_group_size)
        ]
        return max((k for k in found if _fits(k)), key=worth)

    knobs = with_group(tallest, 16)
    if filled(knobs) <= 0.5:
        choices = [with_group(tile_m, 4 * most) for tile_m in divisors(shape.rows, tallest)]
        knobs = max(choices, key=lambda k: (min(filled(k), FULL), k.tile_m))
    return knobs


def _fits(knobs: Knobs) -> bool:
    """Return whether the tiles of both operands fit local memory."""
    rows, columns = knobs.tile_m * knobs.group_m, LANES * knobs.tile_n * knobs.group_n
    return 4 * knobs.tile_k * (rows + columns) <= LOCAL_BYTES


def space(shape: Shape, device: Device) -> dict[str, tuple[Value, ...]]:
    """Return tiles that fit, and work-groups of up to 16 items along each axis."""
    vectors = shape.columns // LANES
    return {
        "tile_m": divisors(shape.rows, 8),
        "tile_n": divisors(vectors, 4),
        "group_m": divisors(shape.rows, 16),
        "group_n": divisors(vectors, 16),
        "tile_k": tuple(k for k in (8, 16, 32) if shape.depth % k == 0),
    }


def match(workload: Workload) -> Shape:
    """Return the shape of a function whose anchor is this family's block."""
    anchor = workload.anchor(NAME)
    *batch, rows, columns, depth = workload.extents(anchor)
    return Shape(prod(batch), rows, columns, depth)


def apply(workload: Workload, knobs: Knobs) -> s_tir.Schedule:
    """Place both tiles and the results under the loops of the anchor."""
    sch, anchor = workload.sch, workload.anchor(NAME)
    (left,), (right,) = workload.with_role(LEFT), workload.with_role(RIGHT)
    before = workload.before(anchor)
    workload.inline(*(b for b in before if workload.annotation(b, ROLE) not in (LEFT, RIGHT)))
    output = workload.merge_epilogue(anchor)
    *batch, m, n, k = sch.get_loops(anchor)
    mo, mg, mi = sch.split(m, [None, knobs.group_m, knobs.tile_m])
    no, ng, ni, lane = sch.split(n, [None, knobs.group_n, knobs.tile_n, LANES])
    ko, ki = sch.split(k, [None, knobs.tile_k])
    sch.reorder(*batch, mo, no, mg, ng, ko, ki, mi, ni, lane)
    workload.bind_batch(batch)
    axes = {"blockIdx.y": mo, "blockIdx.x": no, "threadIdx.y": mg, "threadIdx.x": ng}
    workload.bind(axes.items())
    columns = int(sch.get(sch.get_loops(output)[-1]).extent)
    sch.reverse_compute_at(output, ng)
    if columns % LANES == 0 and is_vector(sch.get(output)):
        below = workload.loops_below(output, ng)
        sch.vectorize(sch.split(below[-1], [None, LANES])[-1])
    items = {"threadIdx.y": knobs.group_m, "threadIdx.x": knobs.group_n}
    for block in (left, right):
        # The scope is set before the block is placed, so that the tile covers all items' reads.
        sch.set_scope(block, 0, "shared")
        sch.compute_at(block, ko)
        copied = sch.fuse(*workload.loops_below(block, ko)[-2:])
        workload.share_among_items([copied], items)
    workload.unroll_all([ki, mi, ni])
    sch.vectorize(lane)
    workload.split_init(anchor, ko, ng)
    return sch
