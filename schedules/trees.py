"""Sums that several vectors, work-items or work-groups share, combined in a tree.

A sum over ``L`` elements is split into digits, two of them (or one, or three) for items::

    f = ((group * steps + step) * items + item) * lanes + lane

Every digit but ``step`` becomes an axis of a partial result, so that a reduction of any kind
(a sum, a maximum, a position) turns into a chain of smaller ones, the last first::

    total    = combine over groups of by_group[group]            a second kernel
    by_group = combine over items  of by_item[group, item]       local memory, barriers
    by_item  = combine over lanes  of by_lane[group, item, lane]
    by_lane  = combine over steps  of what is summed up

Items are combined by eights: two barriers for 64 of them, where halving takes six.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import copysign, isinf, prod
from typing import Any

import tvm_ffi
from tvm import s_tir, tirx
from tvm.tirx import IterVar

from .common import Block, Loop, Workload
from .tiles import largest_divisor

#: Partial results that one item combines at each level of the tree.
RADIX = 8
#: Steps that are written out instead of being a loop.
MOST_UNROLLED = 16
#: Elements worth a work-item of a CPU, and work-items that keep it busy.
CPU_WORK, CPU_ITEMS = 2048, 16
#: The largest number of fp32.
MOST = 3.4028234663852886e38


@dataclass
class Tree:
    """The blocks that a reduction became; each reads the one behind it."""

    #: Writes the result; the blocks below are missing where one item or vector is enough.
    total: Block
    #: A partial result for each work-group.
    groups: Block | None = None
    #: Levels of the tree in a group; the last has a partial result for each item.
    items: list[Block] = field(default_factory=list)
    #: A partial result for each lane of a vector.
    lanes: Block | None = None

    def parts(self) -> list[Block]:
        """All of its blocks."""
        return [b for b in (self.total, self.groups, *self.items, self.lanes) if b is not None]


def power_of_2(number: int) -> int:
    """The largest power of 2 that is at most a number, at least 1."""
    return 1 << max(0, number.bit_length() - 1)


def radices(items: int) -> list[int]:
    """Factors of a power of 2, of at most :data:`RADIX` each."""
    factors = []
    while items > 1:
        factors.append(min(items, RADIX))
        items //= factors[-1]
    return factors


def steps_of(length: int, splits: int, items: int, lanes: int) -> int:
    """Elements that each lane sums up."""
    return -(-length // (splits * items * lanes))


def leaves_nobody_idle(length: int, splits: int, items: int, lanes: int) -> bool:
    """Whether the first step has an element for every lane: only those are ever initialised."""
    steps = steps_of(length, splits, items, lanes)
    return ((splits - 1) * steps + 1) * items * lanes <= length


def grow(workload: Workload, block: Block, *, splits: int, items: int, lanes: int) -> Tree:
    """Split a reduction that stands by itself; digits of 1 are left out."""
    sch = workload.sch
    kinds = [v.iter_type for v in sch.get(block).iter_vars]
    pairs = list(zip(sch.get_loops(block), kinds, strict=True))
    spatial = [loop for loop, kind in pairs if kind == IterVar.DataPar]
    reduced = [loop for loop, kind in pairs if kind != IterVar.DataPar]
    if not spatial:
        spatial = [sch.add_unit_loop(reduced[0])]
    sch.reorder(*spatial, *reduced)
    fused = sch.fuse(*reduced) if len(reduced) > 1 else reduced[0]
    factors = [splits, None, *radices(items), lanes]
    sch.split(fused, factors)
    start = _start(workload, block)
    if start is not None and isinf(start):
        # TVM's rfactor knows extremes that start from the type's own.
        _restart(workload, block, copysign(MOST, start))
    tree, leaf, last = Tree(block), block, len(factors) - 1
    for place, factor in enumerate(factors):
        if factor is None or factor == 1:
            continue
        # The axis of lanes comes last in memory, all others first.
        loop = sch.get_loops(leaf)[len(spatial) + place]
        leaf = sch.rfactor(loop, -1 if place == last else 0)
        if place == 0:
            tree.groups = leaf
        elif place == last:
            tree.lanes = leaf
        else:
            tree.items.append(leaf)
    if start is not None and isinf(start):
        for part in tree.parts():
            _restart(workload, part, start)
    _keep_test(workload, leaf)
    return tree


def _start(workload: Workload, block: Block) -> float | None:
    """What a reduction to one float begins with, if it is a constant."""
    init = workload.sch.get(block).init
    value = init.value if isinstance(init, tirx.BufferStore) else None
    return float(value.value) if isinstance(value, tirx.FloatImm) else None


def _restart(workload: Workload, block: Block, start: float) -> None:
    """Begin a reduction with another value."""
    old = workload.sch.get(block)
    dtype = str(old.init.value.ty.dtype)
    init = tirx.BufferStore(old.init.buffer, tirx.const(start, dtype), old.init.indices)
    new = _with(old, init=init)
    workload.sch.state.replace(workload.sch.get_sref(block), new, {old: new})


def _with(block: s_tir.SBlock, **changes: Any) -> s_tir.SBlock:
    """The same block with another ``body`` or ``init``."""
    parts = {"body": block.body, "init": block.init, **changes}
    return s_tir.SBlock(
        block.iter_vars, block.reads, block.writes, block.name_hint, parts["body"], parts["init"],
        annotations=block.annotations,
    )  # fmt: skip


def _keep_test(workload: Workload, block: Block) -> None:
    """Move the test for elements beyond the last into a block.

    Around it, it would get lost when the block is computed at a loop of another.
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
    test = tvm_ffi.structural_map(realize.predicate, (tirx.Var, lambda v: axes.get(v, v)))
    body = tirx.IfThenElse(tirx.likely(test), old.body, None)
    new = _with(old, body=body)
    tested = tirx.For(
        loop.loop_var,
        loop.min,
        loop.extent,
        loop.kind,
        s_tir.SBlockRealize(realize.iter_values, True, new),
    )
    sch.state.replace(sch.get_sref(sch.get_loops(block)[-1]), tested, {old: new})


@dataclass
class Sum:
    """A block that reduces, with the loops of one item: over what is summed up, and the rest."""

    block: Block
    reduced: list[Loop]
    spatial: list[Loop]

    @classmethod
    def at(cls, workload: Workload, block: Block, above: Loop, scope: str = "local") -> Sum:
        """Compute a block under a loop, into memory of a scope."""
        sch = workload.sch
        for index in range(len(sch.get(block).writes)):
            sch.set_scope(block, index, scope)
        sch.compute_at(block, above, preserve_unit_loops=True)
        loops = workload.loops_below(block, above)
        kinds = [v.iter_type for v in sch.get(block).iter_vars][-len(loops) :]
        pairs = list(zip(loops, kinds, strict=True))
        return cls(
            block,
            [loop for loop, kind in pairs if kind == IterVar.CommReduce],
            [loop for loop, kind in pairs if kind == IterVar.DataPar],
        )

    @classmethod
    def of_lanes(cls, workload: Workload, block: Block, above: Loop) -> Sum:
        """The same for partial results in the lanes of a vector."""
        found = cls.at(workload, block, above)
        # The digit that became an axis last is the first of the block's axes.
        found.spatial = [*found.spatial[1:], found.spatial[0]]
        return found

    def accumulate(self, workload: Workload) -> None:
        """Sum up, in a vector where the last axis is one.

        Only once all blocks have their places: what is left of a reduction afterwards can
        no longer be moved.
        """
        sch = workload.sch
        sch.reorder(*self.reduced, *self.spatial)
        last = self.spatial[-1:]
        vector = last and workload.lanes_of(self.block) == int(sch.get(last[0]).extent)
        if vector:
            # Before it is split: alone, what is left of a reduction reads what it writes.
            sch.vectorize(last[0])
        if prod(int(sch.get(loop).extent) for loop in self.reduced) <= MOST_UNROLLED:
            workload.unroll_all(self.reduced)
        # A test for the last elements belongs behind the loop: it would break up vectors.
        if isinstance(sch.get(self.block).body, tirx.IfThenElse):
            for loop in self.reduced:
                sch.annotate(loop, "pragma_loop_partition_hint", 1)
        init = sch.decompose_reduction(self.block, self.reduced[0])
        if vector:
            sch.vectorize(sch.get_loops(init)[-1])


def bind_results(workload: Workload, loops: list[Loop], work: int) -> Loop:
    """Spread results, each of ``work`` elements, over the device; return the loop of one.

    A work-item of a CPU takes several short ones: launching it costs as much as
    :data:`CPU_WORK` elements.
    """
    if not workload.is_cpu:
        return workload.bind_outer(loops)
    sch = workload.sch
    extents = [int(sch.get(loop).extent) for loop in loops]
    fused = sch.fuse(*loops) if len(loops) > 1 else loops[0]
    # Of one axis: bindings to a split of several are beyond TVM's affine analysis.
    last = next((extent for extent in reversed(extents) if extent > 1), 1)
    several = largest_divisor(last, max(1, min(CPU_WORK // work, prod(extents) // CPU_ITEMS)))
    outer, one = sch.split(fused, [None, several])
    workload.bind_outer([outer])
    return one


def place_in_item(workload: Workload, tree: Tree, above: Loop) -> list[Sum]:
    """Compute a tree without levels of items under the loop of one item."""
    sums = [Sum.at(workload, tree.total, above)]
    if tree.lanes is not None:
        sums.append(Sum.of_lanes(workload, tree.lanes, above))
    return sums


def place_in_group(workload: Workload, tree: Tree, group: Loop, items: int, axis: str) -> list[Sum]:
    """Compute the levels of a tree under the loop of a work-group, with barriers between them.

    ``axis`` is the thread axis that the items of one sum are on.  The total is left
    where it is.
    """
    sch = workload.sch
    sums = []
    for level, block in enumerate(tree.items):
        shared = sch.cache_write(block, 0, "local")
        copied = Sum.at(workload, shared, group, "shared")
        # The digits of items are the first axes, the last digit first.
        digits, rest = copied.spatial[: level + 1][::-1], copied.spatial[level + 1 :]
        sch.reorder(*digits, *rest)
        item = bind_items(workload, digits, items, axis)
        if rest and workload.lanes_of(shared):
            sch.vectorize(rest[-1])
        sums.append(Sum.at(workload, block, item))
        if block is tree.items[-1] and tree.lanes is not None:
            sums.append(Sum.of_lanes(workload, tree.lanes, item))
    return sums


def reduce_across(workload: Workload, block: Block, group: Loop, items: int, axis: str) -> None:
    """Share a reduction among the items of a group as TVM does it, by halving.

    For positions, which are two values at once that a tree of blocks cannot copy.
    """
    sum_ = Sum.at(workload, block, group)
    workload.sch.reorder(*sum_.spatial, *sum_.reduced)
    bind_items(workload, sum_.reduced, items, axis)


def bind_items(workload: Workload, loops: list[Loop], items: int, axis: str) -> Loop:
    """Bind loops to the items of a group; those beyond their extent do nothing."""
    sch = workload.sch
    fused = sch.fuse(*loops) if len(loops) > 1 else loops[0]
    if int(sch.get(fused).extent) != items:
        _, fused = sch.split(fused, [None, items])
    sch.bind(fused, axis)
    return fused


def first_item(workload: Workload, block: Block, above: Loop, items: int, axis: str) -> Loop:
    """A loop around a block, under the loop of a group, that only the first item enters."""
    below = workload.loops_below(block, above)
    unit = workload.sch.add_unit_loop(below[0] if below else block)
    return bind_items(workload, [unit], items, axis)


def group_loops(workload: Workload, loops: list[Loop], items: int) -> tuple[Loop, Loop]:
    """Loops over groups, and over the results of a group where few items share each."""
    sch = workload.sch
    fused = sch.fuse(*loops) if len(loops) > 1 else loops[0]
    together = max(1, workload.target.device.group_size // items)
    outer, inner = sch.split(fused, [None, largest_divisor(int(sch.get(fused).extent), together)])
    return outer, inner


def bind_groups(workload: Workload, groups: Loop, group: Loop) -> None:
    """Bind them last: what is computed at a bound loop is computed for all of its items."""
    workload.sch.bind(groups, "blockIdx.x")
    workload.sch.bind(group, "threadIdx.y")
