"""Reductions that several vectors, work-items or work-groups share, combined in a tree.

The index over ``L`` elements is split into digits, of which items have up to three::

    f = ((group * steps + step) * items + item) * lanes + lane

Every digit but ``step`` becomes an axis of a partial result, so that a reduction of any kind
(a sum, a maximum, a position) turns into a chain of smaller ones, listed from the last one::

    total    = combine over groups of by_group[group]            a second kernel
    by_group = combine over items  of by_item[group, item]       local memory, barriers
    by_item  = combine over lanes  of by_lane[group, item, lane]
    by_lane  = combine over steps  of the elements

Each item combines eight partial results: two barriers for 64 items, while halving takes six.
:func:`split_reduction` builds the chain; :func:`kernels` places each of its blocks: in an
item, in a group, or in a kernel of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import copysign, isinf, prod

from tvm import s_tir, tirx
from tvm.ir import Range
from tvm.sym import Analyzer

from ..devices.target import Device
from ..ir.expressions import substitute_vars, with_fields
from .common import Block, Loop, Workload
from .sizes import FULL, largest_divisor, power_of_2, wave_filled

#: Partial results that one item combines at each level of the tree.
RADIX = 8
#: The largest finite fp32.
LARGEST = 3.4028234663852886e38
#: The axis of the items that share a result, which are neighbours.
ITEM = "threadIdx.x"
#: Most steps that are unrolled.
MOST_UNROLLED = 16
#: Elements worth a work-item of a CPU, and work-items that keep a CPU busy.
CPU_WORK, CPU_ITEMS = 2048, 16
#: Least elements in a part of a reduction: on a CPU worth its launch, on a GPU worth its barriers.
CPU_CHUNK, GPU_CHUNK = 32768, 4
#: Work-items that keep a GPU busy.
GPU_ITEMS = 8192

#: Constraints shared by families whose work-groups share results.
GROUP_IS_POWER_OF_2 = {
    "group_size is a power of 2, at most what the device accepts, "
    "and 1 on a CPU.": lambda k, s, d: (
        k.group_size & (k.group_size - 1) == 0
        and k.group_size <= (1 if d.is_cpu else d.max_group_size)
    ),
}


# -- a chain of smaller sums --------------------------------------------------------------


@dataclass
class Tree:
    """The blocks that a reduction was split into; each reads the one after it."""

    #: The block of the result; the others are missing if one item or vector is enough.
    total: Block
    #: The block of a partial result for each work-group.
    groups: Block | None = None
    #: Levels of the tree in a group; the last has a partial result for each item.
    items: list[Block] = field(default_factory=list)
    #: The block of a partial result for each lane of a vector.
    lanes: Block | None = None


def radices(items: int) -> list[int]:
    """Return factors of a power of 2, each at most :data:`RADIX`."""
    factors = []
    while items > 1:
        factors.append(min(items, RADIX))
        items //= factors[-1]
    return factors


def every_lane_starts(length: int, splits: int, items: int, lanes: int) -> bool:
    """Return whether the first step has an element for every lane: only those are initialised."""
    steps = -(-length // (splits * items * lanes))
    return ((splits - 1) * steps + 1) * items * lanes <= length


def split_reduction(
    workload: Workload, block: Block, *, splits: int, items: int, lanes: int
) -> Tree:
    """Split a reduction whose producers are inlined; digits of extent 1 are left out."""
    sch = workload.sch
    spatial, reduced = workload.by_kind(block, sch.get_loops(block))
    if not spatial:
        spatial = [sch.add_unit_loop(reduced[0])]
    sch.reorder(*spatial, *reduced)
    factors = [splits, None, *radices(items), lanes]
    sch.split(workload.fuse(reduced), factors)
    identity = _identity(workload, block)
    infinite = isinf(identity)
    if infinite:
        # TVM's rfactor supports extrema only if they start from the dtype's limits.
        _set_identity(workload, block, copysign(LARGEST, identity))
    tree, leaf, last = Tree(block), block, len(factors) - 1
    for place, factor in enumerate(factors):
        if factor is None or factor == 1:
            continue
        # The axis of lanes is last in memory, all others are first.
        loop = sch.get_loops(leaf)[len(spatial) + place]
        leaf = sch.rfactor(loop, -1 if place == last else 0)
        if place == 0:
            tree.groups = leaf
        elif place == last:
            tree.lanes = leaf
        else:
            tree.items.append(leaf)
    if infinite:
        for part in (tree.total, tree.groups, *tree.items, tree.lanes):
            if part is not None:
                _set_identity(workload, part, identity)
    _keep_test(workload, leaf)
    return tree


def _identity(workload: Workload, block: Block) -> float:
    """Return the initial value of a reduction to one float; 0 if it is no constant."""
    init = workload.sch.get(block).init
    value = init.value if isinstance(init, tirx.BufferStore) else None
    return float(value.value) if isinstance(value, tirx.FloatImm) else 0.0


def _set_identity(workload: Workload, block: Block, start: float) -> None:
    old = workload.sch.get(block)
    dtype = str(old.init.value.ty.dtype)
    init = tirx.BufferStore(old.init.buffer, tirx.const(start, dtype), old.init.indices)
    _replace(workload.sch, block, init=init)


def _replace(sch: s_tir.Schedule, block: Block, **fields: tirx.Stmt) -> None:
    """Replace the ``body`` or ``init`` of a block."""
    old = sch.get(block)
    new = with_fields(old, **fields)
    sch.state.replace(sch.get_sref(block), new, {old: new})


def _keep_test(workload: Workload, block: Block) -> None:
    """Move the test for elements after the last into a block.

    Around the block, it would get lost when that is computed at a loop of another block.
    """
    sch = workload.sch
    loop = sch.get(sch.get_loops(block)[-1])
    realize = loop.body
    if isinstance(realize.predicate, tirx.IntImm):
        return
    old = realize.block
    axes = {
        value: axis.var
        for axis, value in zip(old.iter_vars, realize.iter_values, strict=True)
        if isinstance(value, tirx.Var)
    }
    test = tirx.likely(substitute_vars(realize.predicate, axes))
    new = with_fields(old, body=tirx.IfThenElse(test, old.body, None))
    tested = with_fields(loop, body=s_tir.SBlockRealize(realize.iter_values, True, new))
    sch.state.replace(sch.get_sref(sch.get_loops(block)[-1]), tested, {old: new})


def shares(length: int, lanes: int, tasks: int, device: Device) -> tuple[int, int]:
    """Return the numbers of work-groups, and of items in each, that should share a result.

    Items come first, then work-groups, until the device is busy with ``tasks`` results, each the
    sum of ``length`` elements in vectors of ``lanes``.  If few items share a result, and the number
    of results does not let a group take several, more items share it: with 16 items of a wave of
    64, the other lanes would be idle.
    """
    if device.is_cpu:
        return _splits(length, lanes, tasks, 1, CPU_ITEMS, CPU_CHUNK), 1
    items = min(device.group_size, power_of_2(length // (lanes * GPU_CHUNK)))
    items = min(items, power_of_2(GPU_ITEMS // tasks))
    if items < 16:
        items = 1
    while True:
        chunk = GPU_CHUNK * (8 * items * lanes)
        splits = _splits(length, lanes, tasks, items, GPU_ITEMS, chunk)
        group = items * _results_of_group(tasks * splits, items, device)
        fills = wave_filled(group, device.wave) >= FULL
        if items == 1 or fills or 2 * items > min(device.group_size, length // lanes):
            return splits, items
        items *= 2


def _splits(length: int, lanes: int, tasks: int, items: int, busy: int, chunk: int) -> int:
    """Return how many work-groups should share a result.

    Each has at least ``chunk`` of its elements, and those of all results have at most ``busy``
    items, if there are not more results than that.
    """
    splits = max(1, min(busy // (tasks * items), 64, length // chunk))
    while not every_lane_starts(length, splits, items, lanes):
        splits -= 1
    return splits


def _results_of_group(results: int, items: int, device: Device) -> int:
    """Return how many results a work-group computes if ``items`` of its work-items share each."""
    return largest_divisor(results, max(1, device.group_size // items))


# -- where they are computed --------------------------------------------------------------


@dataclass
class Sum:
    """A reduction block with the reduced and the spatial loops of one item."""

    block: Block
    reduced: list[Loop]
    spatial: list[Loop]

    @classmethod
    def at(
        cls,
        workload: Workload,
        block: Block,
        at: Loop,
        scope: str = "local",
        *,
        lanes: bool = False,
    ) -> Sum:
        """Compute a block under a loop, into memory of a scope; its results may be ``lanes``."""
        sch = workload.sch
        for index in range(len(sch.get(block).writes)):
            sch.set_scope(block, index, scope)
        sch.compute_at(block, at, preserve_unit_loops=True)
        spatial, reduced = workload.by_kind(block, workload.loops_below(block, at))
        # The digit that became the last axis in memory is the first of the block's loops.
        return cls(block, reduced, [*spatial[1:], spatial[0]] if lanes else spatial)

    def accumulate(self, workload: Workload) -> None:
        """Unroll and vectorise the reduction, and split off its initialisation.

        Call this only once all blocks are placed: a reduction that is split from its
        initialisation can no longer be moved.
        """
        sch = workload.sch
        sch.reorder(*self.reduced, *self.spatial)
        last = self.spatial[-1:]
        vector = last and workload.lanes_of(self.block) == int(sch.get(last[0]).extent)
        if vector:
            # Vectorise before the split: after it, the remaining block reads its own output.
            sch.vectorize(last[0])
        tested = isinstance(sch.get(self.block).body, tirx.IfThenElse)
        if not tested and prod(int(sch.get(x).extent) for x in self.reduced) <= MOST_UNROLLED:
            workload.unroll_all(self.reduced)
        init = sch.decompose_reduction(self.block, self.reduced[0])
        if vector:
            sch.vectorize(sch.get_loops(init)[-1])
        if tested:
            _peel_last_step(workload, self.block, self.reduced)


def _peel_last_step(workload: Workload, block: Block, reduced: list[Loop]) -> None:
    """Peel the last step, the only one that lacks elements, so that the others need no test.

    A test in the loop would break up vectors.  If groups share a sum, only the last group lacks
    elements, and the test stays.
    """
    sch = workload.sch
    loops = [loop for loop in reduced if int(sch.get(loop).extent) > 1]
    if len(loops) != 1:
        return
    steps, found = int(sch.get(loops[0]).extent), sch.get(block)
    variable = sch.get(loops[0]).loop_var
    realize = sch.get(sch.get_loops(block)[-1]).body
    analyzer = Analyzer()
    for axis, value in zip(found.iter_vars, realize.iter_values, strict=True):
        whole = value.same_as(variable)
        analyzer.bind(axis.var, Range(0, steps - 1) if whole else axis.dom)
    if not analyzer.can_prove(found.body.condition.args[0]):
        return
    first, _ = sch.loop_partition(loops[0], [steps - 1, None])
    (untested,) = sch.get_child_blocks(first)
    _replace(sch, untested, body=sch.get(untested).body.then_case)
    if steps <= MOST_UNROLLED:
        sch.unroll(first)


def bind_results(workload: Workload, loops: list[Loop], work: int) -> Loop:
    """Distribute results, each of ``work`` elements, over the device; return the loop of one.

    A CPU's work-item takes several short ones: launching it costs as much as
    :data:`CPU_WORK` elements.
    """
    if not workload.is_cpu:
        return workload.bind_outer(loops)
    sch = workload.sch
    extents = [int(sch.get(loop).extent) for loop in loops]
    fused = workload.fuse(loops)
    # Split a single axis: bindings to a split of several are beyond TVM's affine analysis.
    last = next((extent for extent in reversed(extents) if extent > 1), 1)
    several = largest_divisor(last, max(1, min(CPU_WORK // work, prod(extents) // CPU_ITEMS)))
    outer, one = sch.split(fused, [None, several])
    workload.bind_outer([outer])
    return one


def place_in_item(workload: Workload, tree: Tree, above: Loop) -> list[Sum]:
    """Compute a tree without levels of items under the loop of one item."""
    sums = [Sum.at(workload, tree.total, above)]
    if tree.lanes is not None:
        sums.append(Sum.at(workload, tree.lanes, above, lanes=True))
    return sums


def place_in_group(workload: Workload, tree: Tree, group: Loop, items: int) -> list[Sum]:
    """Compute the levels of a tree under the loop of a work-group, with barriers between them.

    The total is not moved.
    """
    sch = workload.sch
    sums = []
    for level, block in enumerate(tree.items):
        shared = sch.cache_write(block, 0, "local")
        copied = Sum.at(workload, shared, group, "shared")
        # The digits of items are the first axes, the last digit first.
        digits, rest = copied.spatial[: level + 1][::-1], copied.spatial[level + 1 :]
        sch.reorder(*digits, *rest)
        item = bind_items(workload, digits, items)
        if rest and workload.lanes_of(shared):
            sch.vectorize(rest[-1])
        sums.append(Sum.at(workload, block, item))
        if block is tree.items[-1] and tree.lanes is not None:
            sums.append(Sum.at(workload, tree.lanes, item, lanes=True))
    return sums


def reduce_across(workload: Workload, block: Block, group: Loop, items: int) -> None:
    """Share a reduction among the items of a group by halving, as TVM does.

    This serves positions, whose two values a tree of blocks cannot copy.
    """
    sum_ = Sum.at(workload, block, group)
    workload.sch.reorder(*sum_.spatial, *sum_.reduced)
    bind_items(workload, sum_.reduced, items)


def bind_items(workload: Workload, loops: list[Loop], items: int) -> Loop:
    """Bind loops to the items of a group; items beyond their extent do nothing."""
    sch = workload.sch
    fused = workload.fuse(loops)
    if int(sch.get(fused).extent) != items:
        _, fused = sch.split(fused, [None, items])
    sch.bind(fused, ITEM)
    return fused


def first_item(workload: Workload, block: Block, above: Loop, items: int) -> Loop:
    """Add a loop around a block, under the loop of a group, that only the first item enters."""
    below = workload.loops_below(block, above)
    unit = workload.sch.add_unit_loop(below[0] if below else block)
    return bind_items(workload, [unit], items)


def group_loops(workload: Workload, loops: list[Loop], items: int) -> tuple[Loop, Loop]:
    """Return the loop over groups, and that over a group's results if few items share each."""
    sch = workload.sch
    fused = workload.fuse(loops)
    several = _results_of_group(int(sch.get(fused).extent), items, workload.target.device)
    groups, group = sch.split(fused, [None, several])
    return groups, group


def bind_groups(workload: Workload, groups: Loop, group: Loop) -> None:
    """Bind the loops of groups.

    This is done last: a block that is computed at a bound loop is computed for all of its items.
    """
    workload.sch.bind(groups, "blockIdx.x")
    workload.sch.bind(group, "threadIdx.y")


def kernels(
    workload: Workload, output: Block, tree: Tree, splits: int, items: int, columns: int, work: int
) -> list[Sum]:
    """Schedule one kernel, or two if work-groups share a result.

    ``output`` writes the tree's total, which ``splits`` work-groups of ``items`` share.  A result
    has ``work`` elements, and ``columns`` neighbouring results are one vector.
    """
    if tree.groups is None:
        return _kernel(workload, output, tree, items, columns, work)
    partial = workload.sch.cache_write(tree.groups, 0, "local")
    workload.sch.set_scope(partial, 0, "global")
    below = Tree(tree.groups, None, tree.items, tree.lanes)
    sums = _kernel(workload, partial, below, items, columns, work)
    return sums + _kernel(workload, output, Tree(tree.total), 1, columns, splits)


def _kernel(
    workload: Workload, output: Block, tree: Tree, items: int, columns: int, work: int
) -> list[Sum]:
    """Schedule one kernel whose last block is ``output``; a result has ``work`` elements."""
    sch = workload.sch
    loops = list(sch.get_loops(output))
    vector = workload.lanes_of(output) > 0
    lane = loops.pop() if vector or workload.writes_texture(output) else None
    if columns > 1 and lane is None:
        outer, lane = sch.split(loops.pop(), [None, columns])
        loops, vector = [*loops, outer], workload.lanes_of(output) > 0
    if not loops:
        loops = [sch.add_unit_loop(lane if lane is not None else output)]
    if items == 1:
        sums = place_in_item(workload, tree, bind_results(workload, loops, work))
    else:
        groups, group = group_loops(workload, loops, items)
        first = first_item(workload, output, group, items)
        sums = place_in_item(workload, Tree(tree.total), first)
        sums += place_in_group(workload, tree, group, items)
        bind_groups(workload, groups, group)
    if vector:
        sch.vectorize(lane)
    return sums
