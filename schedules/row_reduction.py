"""Functions of whole rows: statistics of each row, then one pass that uses them.

The anchor's ``axes`` span a row.  Blocks with the role ``row`` reduce it, each with the
results of those before it; the anchor reads these results and writes the row::

    peak[r] = max_k x[r, k]    total[r] = sum_k exp(x[r, k] - peak[r])    y[r, k] = ...

All of it is one kernel, with a work-item or a work-group for each row and the statistics in
private or in local memory.  Rows that are neighbours in memory (along channels of a map, for
example) share the lanes of a vector instead.  Rows that are few and long are shared by
work-groups: then each statistic takes two kernels, as a reduction does, and the last pass one.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from math import gcd, prod

from tvm import s_tir

from ..devices.target import Device
from . import fallback
from . import partial_sums as partial
from .common import ROLE, Block, Loop, Workload, is_injective
from .family import Declined, Value, knob
from .sizes import LANES, power_of_2

#: The block annotation with the axes of a row, and the role of the blocks of its statistics.
AXES = "tvmflow.axes"
ROW = "row"


@dataclass(frozen=True)
class Shape:
    """Number of rows (or blocks of them, if channels are lanes), and their length."""

    rows: int
    length: int
    _: KW_ONLY
    #: Rows that are neighbours in memory; 1 if elements of a row are.
    across: int
    #: Whether the lanes of the layout are rows.
    blocked: bool


@dataclass(frozen=True)
class Knobs:
    """Knobs of the groups, items and lanes that share a row."""

    splits: int = knob("Work-groups that share a row, with separate kernels for statistics.")
    group_size: int = knob("Work-items of a work-group that share a row, a power of 2.")
    lanes: int = knob("Elements of a vector, of one row or of neighbouring ones.")


CONSTRAINTS = {
    **partial.GROUP_IS_POWER_OF_2,
    "lanes is 1 or the width of a vector, and 1 where the layout has lanes.": lambda k, s, d: (
        k.lanes == 1 or (k.lanes in LANES and not s.blocked)
    ),
    "lanes must divide neighbouring rows.": lambda k, s, d: (
        s.across == 1 or s.across % k.lanes == 0
    ),
    "Every lane of every item of every group must have a first element.": lambda k, s, d: (
        partial.every_lane_starts(s.length, k.splits, k.group_size, _along(k, s))
    ),
}


def _along(knobs: Knobs, shape: Shape) -> int:
    """Return the lanes along a row."""
    return 1 if shape.across > 1 or shape.blocked else knobs.lanes


def heuristic(shape: Shape, device: Device) -> Knobs:
    """Return vectors if possible, then items, then work-groups, while rows are few and long."""
    if shape.blocked:
        lanes = 1
    elif shape.across > 1:
        lanes = gcd(shape.across, device.channel_block) if device.is_cpu else 1
    else:
        lanes = min(device.channel_block, power_of_2(shape.length))
    along = 1 if shape.across > 1 or shape.blocked else lanes
    return Knobs(*partial.shares(shape.length, along, shape.rows * along // lanes, device), lanes)


def space(shape: Shape, device: Device) -> dict[str, tuple[Value, ...]]:
    """Return all vectors, and numbers and sizes of groups."""
    return {
        "splits": (1, 4, 16, 64),
        "group_size": (1,) if device.is_cpu else (1, 8, 16, 32, 64, 128, 256),
        "lanes": (1,) if shape.blocked else (1, *LANES),
    }


def match(workload: Workload, family: str) -> Shape:
    """Return the shape of a function whose anchor is of a family, with an elementwise epilogue."""
    anchor = workload.anchor(family)
    extents, axes = workload.extents(anchor), _axes(workload, anchor)
    after = workload.after(anchor)
    # Other producers of the last block (a mask of rows, for example) are inlined.
    elementwise = all(is_injective(workload.sch, block) for block in after)
    if not elementwise or (after and workload.extents(after[-1]) != extents):
        raise Declined("the blocks after it are not elementwise")
    length = prod(extents[a] for a in axes)
    rank = len(extents)
    blocked = rank == 5 and rank - 1 not in axes and workload.lanes_of(anchor) > 0
    blocked = blocked and extents[-1] == workload.target.device.channel_block
    lanes = extents[-1] if blocked else 1
    across = 1 if blocked or rank - 1 in axes else extents[-1]
    return Shape(prod(extents) // length // lanes, length, across=across, blocked=blocked)


def _axes(workload: Workload, anchor: Block) -> list[int]:
    return [int(a) for a in (workload.annotation(anchor, AXES) or "").split(",") if a]


def apply(workload: Workload, knobs: Knobs, family: str) -> s_tir.Schedule:
    """Schedule the statistics of rows and the last pass, in one kernel or, split, in several."""
    sch = workload.sch
    shape = match(workload, family)
    anchor = workload.anchor(family)
    axes = _axes(workload, anchor)
    statistics = workload.with_role(ROW)
    before, after = workload.before(anchor), [anchor, *workload.after(anchor)]
    workload.inline(*(b for b in before if workload.annotation(b, ROLE) != ROW), *after[:-1])
    output = workload.blocks[-1]
    along = _along(knobs, shape)
    if knobs.splits > 1:
        return _in_kernels(workload, statistics, output, shape, knobs)
    trees = [
        partial.split_reduction(workload, block, splits=1, items=knobs.group_size, lanes=along)
        for block in statistics
    ]
    loops = list(sch.get_loops(output))
    rows = [loop for axis, loop in enumerate(loops) if axis not in axes]
    columns = [loops[axis] for axis in axes]
    lane: Loop | None = None
    if shape.blocked:
        lane = rows.pop()
    elif shape.across > 1 and knobs.lanes > 1:
        outer, lane = sch.split(rows.pop(), [None, knobs.lanes])
        rows.append(outer)
    if not rows:
        rows = [sch.add_unit_loop(loops[0])]
    sch.reorder(*rows, *columns, *([] if lane is None else [lane]))
    column = workload.fuse(columns)
    if knobs.group_size == 1:
        item = partial.bind_results(workload, rows, shape.length)
        sums = [s for tree in reversed(trees) for s in partial.place_in_item(workload, tree, item)]
    else:
        sums = _place_in_group(workload, trees, rows, knobs.group_size)
    _write(workload, output, column, lane, knobs.group_size, along)
    for sum_ in sums:
        sum_.accumulate(workload)
    return sch


def _in_kernels(
    workload: Workload, statistics: list[Block], output: Block, shape: Shape, knobs: Knobs
) -> s_tir.Schedule:
    """Schedule kernels for each statistic, whose rows groups share, and one for the last pass."""
    columns = knobs.lanes if shape.across > 1 else 1
    sums = []
    for block in statistics:
        written = workload.sch.cache_write(block, 0, "local")
        splits, items, lanes = knobs.splits, knobs.group_size, _along(knobs, shape)
        tree = partial.split_reduction(workload, block, splits=splits, items=items, lanes=lanes)
        sums += partial.kernels(workload, written, tree, splits, items, columns, shape.length)
    for sum_ in sums:
        sum_.accumulate(workload)
    fallback.schedule_block(workload, output)
    return workload.sch


def _place_in_group(
    workload: Workload, trees: list[partial.Tree], rows: list[Loop], items: int
) -> list[partial.Sum]:
    """Place the statistics of a row in local memory, where all items of its group read them."""
    sch = workload.sch
    groups, group = partial.group_loops(workload, rows, items)
    sums = []
    for tree in reversed(trees):
        shared = sch.cache_write(tree.total, 0, "local")
        partial.Sum.at(workload, shared, group, "shared")
        first = partial.first_item(workload, shared, group, items)
        sums.append(partial.Sum.at(workload, tree.total, first))
        sums += partial.place_in_group(workload, tree, group, items)
    partial.bind_groups(workload, groups, group)
    return sums


def _write(
    workload: Workload, output: Block, column: Loop, lane: Loop | None, items: int, along: int
) -> None:
    """Schedule the last pass over a row: vectors, distributed over the items of a group."""
    sch = workload.sch
    whole, tail = divmod(int(sch.get(column).extent), items * along)
    step, item, vector = sch.split(column, [None, items, along])
    if items > 1:
        partial.bind_items(workload, [item], items)
    # CUDA's vectors must be aligned, which those of every row but the first may not be.
    aligned = lane is not None or tail % along == 0
    if workload.lanes_of(output) and (aligned or workload.target.kind != "cuda"):
        sch.vectorize(vector if lane is None else lane)
    if whole and tail:
        # A test for the last elements inside the loop would break up vectors.
        sch.loop_partition(step, [whole, None])
