"""Reductions (sum, mean, max, min, product, positions of extremes) over any axes.

The family serves any function with exactly one reduction, elementwise producers before it
and elementwise consumers after it; the operator defines the computation.

A reduction with many results has one work-item a result, or a vector of neighbouring
results.  With few results, several share each: the lanes of a vector, the items of a work-group,
which combine their parts in local memory, and work-groups, whose partial results a second
kernel combines.  :mod:`.partial_sums` implements this.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from math import gcd, prod

from tvm import s_tir, tirx
from tvm.ir.expr import TensorLoad
from tvm.tirx import IterVar

from ..devices.target import Device
from ..ir.booleans import keeps_booleans
from ..ir.expressions import nodes_in, uses
from . import fallback
from . import partial_sums as partial
from .common import Block, Workload, is_injective, is_reduction
from .family import Declined, Value, knob
from .sizes import LANES, power_of_2

NAME = "reduction"
ORDER = 530


@dataclass(frozen=True)
class Shape:
    """Numbers of results and of elements that each reduces, and their order in memory."""

    #: Results, or blocks of them if their channels are lanes.
    outputs: int
    #: Elements that are reduced to each result.
    reduced: int
    _: KW_ONLY
    #: Neighbours in memory of the same result, and neighbours of different results.
    along: int
    across: int
    #: Whether blocks after the reduction compute more elements than its results.
    broadcast: bool
    #: Whether the results are positions: two values that depend on a comparison.
    positions: bool


@dataclass(frozen=True)
class Knobs:
    """Knobs of the groups, items and lanes that share a result."""

    splits: int = knob("Work-groups that share a result; a second kernel combines their parts.")
    group_size: int = knob("Work-items of a work-group that share a result, a power of 2.")
    lanes: int = knob("Elements of a vector, of one result or of neighbouring ones.")


def _vector(knobs: Knobs, shape: Shape) -> int:
    """Return the lanes along the reduced axes."""
    return knobs.lanes if shape.along > 1 else 1


CONSTRAINTS = {
    **partial.GROUP_IS_POWER_OF_2,
    "lanes is 1 or the width of a vector.": lambda k, s, d: k.lanes == 1 or k.lanes in LANES,
    "lanes must divide neighbouring results, "
    "or neighbours of one sum, unless these are all of it.": lambda k, s, d: (
        s.across % k.lanes == 0 if s.along == 1 else s.along == s.reduced or s.along % k.lanes == 0
    ),
    "Positions are found without vectors, and by one work-group.": lambda k, s, d: (
        not s.positions or k.lanes == k.splits == 1
    ),
    "Every lane of every item of every group must have a first element.": lambda k, s, d: (
        partial.every_lane_starts(s.reduced, k.splits, k.group_size, _vector(k, s))
    ),
}


def heuristic(shape: Shape, device: Device) -> Knobs:
    """Return vectors first, then items, then work-groups, until the device is busy."""
    widest = device.channel_block
    lanes = 1
    if not shape.positions and shape.along > 1:
        whole = shape.along == shape.reduced
        # The scalar remainder of a short sum costs more than its vectors gain.
        few = power_of_2(shape.reduced // 8)
        lanes = min(widest, few) if whole else gcd(shape.along, widest)
    elif not shape.positions and device.is_cpu:
        lanes = gcd(shape.across, widest)
    vector = lanes if shape.along > 1 else 1
    tasks = shape.outputs * vector // lanes
    splits, items = partial.shares(shape.reduced, vector, tasks, device)
    return Knobs(1 if shape.positions else splits, items, lanes)


def space(shape: Shape, device: Device) -> dict[str, tuple[Value, ...]]:
    """Return all vectors, and numbers and sizes of groups in steps of two and four."""
    sizes = (1, 8, 16, 32, 64, 128, 256)
    return {
        "splits": (1,) if shape.positions else (1, 2, 4, 8, 16, 32, 64),
        "group_size": (1,) if device.is_cpu else sizes,
        "lanes": (1,) if shape.positions else (1, *LANES),
    }


def match(workload: Workload) -> Shape:
    """Return the shape of a function with one reduction."""
    sch = workload.sch
    reductions = _reductions(workload)
    if len(reductions) != 1 or any(
        not (is_injective(sch, b) or is_reduction(sch, b)) for b in workload.blocks
    ):
        raise Declined(f"{len(reductions)} reductions")
    anchor = reductions[0]
    workload.inline(*workload.before(anchor))
    kinds = [v.iter_type for v in sch.get(anchor).iter_vars]
    extents = workload.extents(anchor)
    if len(kinds) != len(extents):
        raise Declined("no loop for each axis")
    pairs = list(zip(extents, kinds, strict=True))
    outputs = prod(extent for extent, kind in pairs if kind == IterVar.DataPar)
    reduced = prod(extent for extent, kind in pairs if kind == IterVar.CommReduce)
    along, across = neighbours(sch.get(anchor), extents)
    lanes = _output_lanes(workload, anchor)
    if lanes:
        outputs, along, across = outputs // lanes, 1, 1
    written = prod(int(e) for e in sch.get(workload.blocks[-1]).writes[0].source.shape)
    broadcast = written > prod(e for e, kind in pairs if kind == IterVar.DataPar)
    positions = len(sch.get(anchor).writes) > 1 or keeps_booleans(sch.get(anchor))
    if positions and broadcast:
        raise Declined("positions are spread again")
    return Shape(
        outputs, reduced, along=along, across=across, broadcast=broadcast, positions=positions
    )


def _reductions(workload: Workload) -> list[Block]:
    return [b for b in workload.blocks if is_reduction(workload.sch, b)]


def _output_lanes(workload: Workload, anchor: Block) -> int:
    """Return the lanes of the blocked layout in the output, all of which a work-item writes."""
    output = workload.blocks[-1]
    # The shape is the reduction's own output: blocks after it may write more.
    shape = [int(extent) for extent in workload.sch.get(anchor).writes[0].source.shape]
    blocked = len(shape) == 5 and shape[-1] == workload.target.device.channel_block
    return shape[-1] if blocked or workload.writes_texture(output) else 0


def neighbours(block: s_tir.SBlock, extents: list[int]) -> tuple[int, int]:
    """Return how many neighbours in memory share a result, and how many have different results."""
    written = [region.source for region in block.writes]
    kinds = {v.var: (v.iter_type, e) for v, e in zip(block.iter_vars, extents, strict=True)}
    summed = [v.var for v in block.iter_vars if v.iter_type == IterVar.CommReduce]
    # Tensors whose element stays the same during a sum do not count.
    found = [
        _run(load.indices, kinds)
        for load in nodes_in(block.body, TensorLoad)
        if not any(load.source.same_as(buffer) for buffer in written)
        and any(uses(index, variable) for index in load.indices for variable in summed)
    ]
    alongs, acrosses = {a for a, _ in found}, {c for _, c in found}
    along = alongs.pop() if len(alongs) == 1 else 1
    across = acrosses.pop() if len(acrosses) == 1 else 1
    return along, across


def _run(indices: Sequence[tirx.Expr], kinds: dict[tirx.Var, tuple[int, int]]) -> tuple[int, int]:
    """Return the extent of the last axes if reduced, and of the last one if not; else 1."""
    along = 1
    summed = [variable for variable, (kind, _) in kinds.items() if kind == IterVar.CommReduce]
    for index in reversed(list(indices)):
        if isinstance(index, tirx.IntImm):
            continue
        lane = isinstance(index, tirx.FloorMod)
        kind, extent = kinds.get(index.a if lane else index, (None, 1))
        if kind == IterVar.DataPar and along == 1 and not lane:
            return 1, extent
        if kind != IterVar.CommReduce or (lane and not index.a.same_as(summed[-1])):
            break
        along *= min(int(index.b), extent) if lane else extent
        if lane:
            break
    return along, 1


def apply(workload: Workload, knobs: Knobs) -> s_tir.Schedule:
    """Split the reduction by ``knobs`` and place each part."""
    sch = workload.sch
    shape = match(workload)
    anchor = _reductions(workload)[0]
    if shape.broadcast:
        # Blocks that compute many elements for each result are a kernel of their own.
        workload.inline(*workload.after(anchor)[:-1])
        fallback.schedule_block(workload, workload.blocks[-1])
        workload.blocks = [anchor]
    output = workload.merge_epilogue(anchor)
    if not sch.get_loops(output):
        # TVM's rfactor fails on a block without loops.
        sch.add_unit_loop(output)
    if shape.positions:
        _kernel_of_positions(workload, anchor, output, knobs.group_size)
        return sch
    splits, items, lanes = knobs.splits, knobs.group_size, _vector(knobs, shape)
    tree = partial.split_reduction(workload, anchor, splits=splits, items=items, lanes=lanes)
    columns = knobs.lanes if shape.along == 1 else 1
    for sum_ in partial.kernels(workload, output, tree, splits, items, columns, shape.reduced):
        sum_.accumulate(workload)
    return sch


def _kernel_of_positions(workload: Workload, anchor: Block, output: Block, items: int) -> None:
    """Write one kernel that finds positions, with an item or a group for each."""
    sch = workload.sch
    loops = list(sch.get_loops(output))
    if items == 1:
        (sum_,) = partial.place_in_item(workload, partial.Tree(anchor), workload.bind_outer(loops))
        sum_.accumulate(workload)
        return
    groups, group = partial.group_loops(workload, loops, items)
    partial.first_item(workload, output, group, items)
    partial.reduce_across(workload, anchor, group, items)
    partial.bind_groups(workload, groups, group)
