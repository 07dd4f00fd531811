"""How the product of two matrices is scheduled on a GPU: from one item a group to local memory.

A work-group of the last step copies tiles of both operands to local memory, each number once, and
multiplies them from there.  Tiles are the same on all devices: the walk is to be read, and
:mod:`..matmul` is what networks use.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..common import Block, Loop, Workload
from .product import NAME, blocks_of, whole_tiles
from .steps import vectorize_block

#: Of groups along columns and rows, and of items along rows and columns.
AXES = ("blockIdx.y", "blockIdx.x", "threadIdx.y", "threadIdx.x")


@dataclass(frozen=True)
class GroupTile:
    """What a step does with the loops."""

    #: Rows and columns whose sums an item keeps in registers.
    rows: int = 1
    lanes: int = 1
    #: Items of a group along the rows, and as many along the columns.
    group: int = 1
    #: Depth of the tiles in local memory; 0 without them.
    depth: int = 0


def tiled_in_groups(workload: Workload, tile: GroupTile) -> None:
    """Schedule a product, and what follows it, by the tiles of work-groups."""
    sch = workload.sch
    anchor = workload.anchor(NAME)
    samples = [1 for _ in workload.extents(anchor)[:-3]]
    multiples = [tile.rows * tile.group, tile.lanes * tile.group, tile.depth or 1]
    copies = whole_tiles(workload, anchor, [*samples, *multiples])
    if tile.depth:
        # The copies to local memory pad.
        staged = [sch.cache_read(anchor, index, "shared") for index in range(2)]
        for copy in copies:
            sch.compute_inline(copy)
        workload.blocks = [b for b in blocks_of(sch) if not _is_one_of(workload, b, staged)]
    else:
        staged = []
        for copy in copies:
            workload.bind_outer(sch.get_loops(copy))
    output = workload.merge_epilogue(anchor)
    *batch, i, j, k = sch.get_loops(anchor)
    by, ty, row = sch.split(i, [None, tile.group, tile.rows])
    bx, tx, lane = sch.split(j, [None, tile.group, tile.lanes])
    sch.reorder(by, bx, ty, tx, k, row, lane)
    # Only x has room for more than 65,535 groups on CUDA: samples and rows are many.
    by = sch.fuse(*batch, by)
    for loop, axis in zip((bx, by, ty, tx), AXES, strict=True):
        sch.bind(loop, axis)
    sch.reverse_compute_at(output, tx, preserve_unit_loops=True)
    vectorize_block(workload, output, tx, tile.lanes)
    if staged:
        k, step = sch.split(k, [None, tile.depth])
        left, right = staged
        _copy_together(workload, left, k, tile.group, 1)
        _copy_together(workload, right, k, tile.group, tile.lanes)
        # A word more in each row: items of different rows read different banks.
        sch.storage_align(left, 0, -2, tile.depth, 1)
        sch.unroll(step)
    sch.unroll(row)
    if tile.lanes > 1:
        sch.vectorize(lane)
    init = sch.decompose_reduction(anchor, k)
    vectorize_block(workload, init, tx, tile.lanes)


def _copy_together(workload: Workload, block: Block, above: Loop, group: int, lanes: int) -> None:
    """Let the items of a group copy a tile, neighbours neighbouring vectors."""
    sch = workload.sch
    sch.compute_at(block, above, preserve_unit_loops=True)
    numbers = sch.fuse(*workload.loops_below(block, above))
    _times, ty, tx, lane = sch.split(numbers, [None, group, group, lanes])
    sch.bind(ty, "threadIdx.y")
    sch.bind(tx, "threadIdx.x")
    if lanes > 1:
        sch.vectorize(lane)


def _is_one_of(workload: Workload, block: Block, others: list[Block]) -> bool:
    sch = workload.sch
    return any(sch.get(block).same_as(sch.get(other)) for other in others)
