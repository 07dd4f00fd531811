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
:mod:`.sums` says where the parts are computed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import copysign, isinf
from typing import Any

import tvm_ffi
from tvm import s_tir, tirx
from tvm.tirx import IterVar

from .common import Block, Workload

#: Partial results that one item combines at each level of the tree.
RADIX = 8
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
    new = changed(old, init=init)
    workload.sch.state.replace(workload.sch.get_sref(block), new, {old: new})


def changed(block: s_tir.SBlock, **changes: Any) -> s_tir.SBlock:
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
    new = changed(old, body=body)
    tested = tirx.For(
        loop.loop_var,
        loop.min,
        loop.extent,
        loop.kind,
        s_tir.SBlockRealize(realize.iter_values, True, new),
    )
    sch.state.replace(sch.get_sref(sch.get_loops(block)[-1]), tested, {old: new})
