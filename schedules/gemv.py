"""Products of one or few rows with a matrix on GPUs, in which each weight is read once.

:mod:`.dense` defines the computation, in any of its forms.  In its schedule a work-item sums a
whole column, so that a GPU has too few items, and neighbours read packed weights or rows far
apart.  Here the ``items`` of a work-group share the sum over K, with K in their vectors::

    k = step * items + item
    by_item[item]     = sum over steps       registers, then local memory
    by_eight[i]       = sum over 8 of them   local memory, after a barrier
    y                 = sum over the rest

so that neighbours read neighbouring vectors (packed weights, and rows).  Weights in columns are
contiguous along N: there, a group has ``columns`` vectors of them, and ``items`` rows.

The items are the largest of 64, 32 and 16 that divides the depth.  If a group then fills less than
three quarters of its waves' lanes, another multiple of 8 that divides the depth, or more columns,
may fill more: 176 items of a depth of 176, where 16 fill a quarter of a wave of 64.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import log2, prod

from tvm import s_tir

from ..devices.target import Device
from . import dense
from .common import Block, Loop, Workload
from .dense import COLUMNS, PACKED, ROWS
from .family import Declined, Value, knob
from .sizes import FULL, LANES, divisors, largest_divisor, wave_filled

NAME = "gemv"
ORDER = 400

#: Most rows of ``x`` for which weights are still read once: those of a register tile.
MOST_ROWS = 4
#: Partial sums that one item adds up.
RADIX = 8
#: Fewest items that pay for the barriers.
LEAST_ITEMS = 16
#: Most items that share a sum.
MOST_ITEMS = 256
#: Steps that the heuristic unrolls: as many loads of texels or vectors are in flight.
UNROLL = 4


@dataclass(frozen=True)
class Shape:
    """The form of the weights, and the extents of the product."""

    form: str
    rows: int
    #: Vectors of columns, or single columns in the rows form.
    columns: int
    #: Products that items can share: vectors of them in the rows form.
    depth: int


@dataclass(frozen=True)
class Knobs:
    """Knobs of the part of the weights that each work-item of a group takes."""

    items: int = knob("Work-items that share the sum over K.")
    columns: int = knob("Vectors of columns of a work-group, each with its own items.")
    unroll: int = knob("Steps over K whose loads an item has in flight at once.")


CONSTRAINTS = {
    "items must divide the depth and be a multiple of 8, from 16 to 256.": lambda k, s, d: (
        k.items in _items(s.depth)
    ),
    "columns must divide the columns of the matrix.": lambda k, s, d: s.columns % k.columns == 0,
    "items * columns is at most what the device accepts.": lambda k, s, d: (
        k.items * k.columns <= d.max_group_size
    ),
}


def _items(depth: int) -> tuple[int, ...]:
    """Return the numbers of items that may share a sum of this depth."""
    found = divisors(depth, MOST_ITEMS)
    return tuple(n for n in found if n >= LEAST_ITEMS and n % RADIX == 0)


def heuristic(shape: Shape, device: Device) -> Knobs:
    """Return a group of the usual size for each column; with contiguous columns, for several."""
    columns, sizes = 1, [64, 32, LEAST_ITEMS]
    if shape.form == COLUMNS:
        sizes = [LEAST_ITEMS]
        columns = largest_divisor(shape.columns, min(16, device.max_group_size // LEAST_ITEMS))
    items = next(n for n in sizes if shape.depth % n == 0)
    usual = items, columns

    def worth(group: tuple[int, int]) -> float:
        # Twice the usual size counts like a fifth fewer lanes, as in `work_groups`.
        far = sum(abs(log2(count / u)) for count, u in zip(group, usual, strict=True))
        return log2(wave_filled(prod(group), device.wave)) - 0.3 * far

    if wave_filled(prod(usual), device.wave) < FULL:
        groups = product(_items(shape.depth), divisors(shape.columns, 16))
        fitting = (group for group in groups if prod(group) <= device.max_group_size)
        items, columns = max(fitting, key=worth)
    return Knobs(items, columns, UNROLL)


def space(shape: Shape, device: Device) -> dict[str, tuple[Value, ...]]:
    """Return groups of all sizes."""
    return {
        "items": _items(shape.depth),
        "columns": divisors(shape.columns, 64),
        "unroll": (1, 2, 4, 8),
    }


def match(workload: Workload) -> Shape | None:
    """Return the shape of a dense function of few rows, on a GPU, whose depth can be shared."""
    found = dense.match(workload)
    if found is None or workload.is_cpu or found.rows > MOST_ROWS:
        return None
    anchor = workload.anchor(found.form)
    *rest, depth = workload.extents(anchor)
    if len(rest) != 3:
        return None
    if depth % LEAST_ITEMS:
        raise Declined(f"a sum of {depth} cannot be shared")
    return Shape(found.form, found.rows, found.columns, depth)


def apply(workload: Workload, knobs: Knobs) -> s_tir.Schedule:
    """Split the sum into a tree and give each level its loops."""
    sch = workload.sch
    form = next(f for f in (PACKED, COLUMNS, ROWS) if workload.anchors(f))
    total = last = workload.anchor(form)
    if form == ROWS:
        (last,) = workload.with_role("combine")
        sch.set_scope(total, 0, "local")
    *_, lane, k = sch.get_loops(total)
    width = 1 if form == ROWS else int(sch.get(lane).extent)
    output = workload.merge_epilogue(last)
    # Neighbouring items take neighbours in memory.
    axes = ("threadIdx.y", "threadIdx.x") if form == COLUMNS else ("threadIdx.x", "threadIdx.y")
    _, high, _ = sch.split(k, [None, knobs.items // RADIX, RADIX])
    by_eight = sch.rfactor(high, 0)
    by_item = sch.rfactor(sch.get_loops(by_eight)[-1], 0)
    texels = workload.stage_weights(by_item, 1)
    # Operands that several items read are copied to local memory when complete: barriers follow
    # copies, and are not between the additions.
    shared, eights = (sch.cache_write(block, 0, "local") for block in (by_item, by_eight))

    m, n = sch.get_loops(output)
    group, vector, ni = sch.split(n, [None, knobs.columns, width])
    sch.reorder(group, vector, m, ni)
    items: list[Loop] = []
    only = sch.add_unit_loop(m)
    _, first = sch.split(only, [None, knobs.items])
    for block in (last, total) if form == ROWS else (total,):
        sch.compute_at(block, first, preserve_unit_loops=True)
    for sums, copy in ((by_eight, eights), (by_item, shared)):
        sch.set_scope(copy, 0, "shared")
        sch.compute_at(copy, group, preserve_unit_loops=True)
        items.append(_bind_copy(workload, copy, group, axes, knobs.items))
        sch.compute_at(sums, items[-1], preserve_unit_loops=True)
    # Neighbours write a row apart: rows that are a vector longer are in different banks.
    sch.storage_align(shared, 0, 0, RADIX * width, width)
    # The group is bound last: a block at a bound loop is computed for all of its items.
    sch.bind(group, "blockIdx.x")
    sch.bind(vector, axes[1])
    sch.bind(first, axes[0])
    # Only after all blocks are placed may sums be split from their initialisation.
    for block in (last, total) if form == ROWS else (total,):
        _sum(workload, block, first, RADIX)
    _sum(workload, by_eight, items[0], RADIX)
    _sum(workload, by_item, items[1], knobs.unroll, texels)
    return sch


def _bind_copy(
    workload: Workload, block: Block, group: Loop, axes: tuple[str, str], items: int
) -> Loop:
    """Bind the loops of a block that stores sums in local memory; return the loop of one item."""
    sch = workload.sch
    *digits, m, vector, lane = workload.loops_below(block, group)
    # The last digit of an item comes first.
    digits.reverse()
    sch.reorder(vector, *digits, m, lane)
    sch.bind(vector, axes[1])
    item = workload.fuse(digits)
    if int(sch.get(item).extent) != items:
        _, item = sch.split(item, [None, items])
    sch.bind(item, axes[0])
    workload.vectorize_last([m, lane])
    return item


def _sum(
    workload: Workload, block: Block, above: Loop, unroll: int, texels: Block | None = None
) -> None:
    """Sum in registers, in vectors; ``texels`` is a copy of weights that are in a texture."""
    sch = workload.sch
    spatial, (k,) = workload.by_kind(block, workload.loops_below(block, above))
    k, inner = sch.split(k, [None, largest_divisor(int(sch.get(k).extent), unroll)])
    sch.reorder(k, inner, *spatial)
    workload.unroll_all([inner])
    workload.place_staged(texels, inner)
    vector = int(sch.get(spatial[-1]).extent) in LANES
    if vector:
        workload.vectorize_last(spatial)
    init = sch.decompose_reduction(block, k)
    if vector:
        workload.vectorize_last(workload.loops_below(init, above))
