"""The product of two matrices, and its schedules on CPUs and GPUs.

    x[.., M, K]   w[K, N]      product[.., i, j] = sum_k x[.., i, k] * w[k, j]

On a CPU a tile of the result stays in registers while vectors of ``w`` and numbers of ``x`` are
read; a block, which is tiles below each other, reads a part of ``w`` that the cache holds; and
``w`` may first be copied into panels that are read in order: the plan of every BLAS.  The epilogue,
such as requantization, is computed when a block is stored.

On a GPU a work-group of the last step copies tiles of both operands to local memory, each number
once, and multiplies them from there.  Tiles are the same on all devices, because the lab is for
reading; networks use :mod:`..matmul`.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace
from math import isqrt

from tvm import te

from ...devices.presets import Device
from ..common import FAMILY, PAD, ROLE, Block, Loop, Workload
from ..definitions import Multiply
from ..sizes import largest_divisor, tile_of
from .steps import bind_loops, vectorize_block

NAME = "lab_product"


def product(x: te.Tensor, w: te.Tensor, multiply: Multiply = operator.mul) -> te.Tensor:
    """Return ``x[.., M, K] @ w[K, N]``; ``multiply`` computes its products."""
    k = te.reduce_axis((0, int(w.shape[0])), name="k")
    return te.compute(
        (*x.shape[:-1], w.shape[1]),
        lambda *i: te.sum(multiply(x(*i[:-1], k), w(k, i[-1])), axis=k),
        name="product",
        attrs={FAMILY: NAME},
    )


# -- on a CPU -----------------------------------------------------------------------------

#: Depth of the part of the right matrix that stays in the second cache: 64 KB of four vectors.
DEPTH = 256
#: Steps over the depth that are unrolled.
_STEPS = 4


@dataclass(frozen=True)
class Tile:
    """The loops of a step on a CPU."""

    #: Rows and vectors of columns whose sums stay in registers.
    rows: int = 1
    vectors: int = 1
    #: Most tiles of a block: one below the other, they read the same parts of the right matrix.
    #: 0 means no blocks, with tiles along the rows.
    block: int = 0
    parallel: bool = False
    packed: bool = False

    def with_block(self, block: int) -> Tile | None:
        """Return the loops with blocks of another number of tiles; ``None`` without blocks."""
        return replace(self, block=block) if self.block else None

    def most(self, rows: int, _device: Device) -> int:
        """Return the largest block for a number of rows."""
        return -(-rows // min(self.rows, rows))

    def __call__(self, workload: Workload) -> None:
        """Schedule a product and its epilogue by tiles."""
        sch, lanes = workload.sch, workload.target.device.channel_block
        anchor = workload.anchor(NAME)
        *batch, rows, columns, depth = workload.extents(anchor)
        high = min(self.rows, rows)
        wide = min(self.vectors, -(-columns // lanes)) * lanes
        tiles, part = 1, depth
        if self.block:
            tiles = tile_of(-(-rows // high), self.block)
            if depth > DEPTH:
                part = _STEPS * tile_of(-(-depth // _STEPS), DEPTH // _STEPS)
        copies = whole_tiles(workload, anchor, [*(1 for _ in batch), tiles * high, wide, part])
        if self.packed:
            copies = pack(workload, anchor, copies, wide)
        for copy in copies:
            bind_loops(workload, sch.get_loops(copy)[:1], parallel=self.parallel)
        output = workload.merge_epilogue(anchor)
        *samples, i, j, k = sch.get_loops(anchor)
        block, i, row = sch.split(i, [None, tiles, high])
        j, vector, lane = sch.split(j, [None, wide // lanes, lanes])
        steps = largest_divisor(part, _STEPS)
        deep, k, step = sch.split(k, [None, part // steps, steps])
        outer = [*samples, j, block] if self.block else [*samples, block, j]
        sch.reorder(*outer, deep, i, k, step, row, vector, lane)
        item = bind_loops(workload, outer, parallel=self.parallel)
        sch.reverse_compute_at(output, item, preserve_unit_loops=True)
        stored, _ = sch.split(workload.loops_below(output, item)[-2], [None, high])
        vectorize_block(workload, output, stored, lanes)
        sch.unroll(step)
        workload.vectorize_last([row, vector, lane])
        init = sch.decompose_reduction(anchor, deep)
        workload.vectorize_last(workload.loops_below(init, item)[-3:])


def whole_tiles(workload: Workload, anchor: Block, multiples: list[int]) -> list[Block]:
    """Pad the product's axes with zeros to multiples; return the copies of operands for that.

    The hot loop then has no tests: only stores are tested.
    """
    sch = workload.sch
    extents = workload.extents(anchor)
    if not any(extent % part for extent, part in zip(extents, multiples, strict=True)):
        return []
    names = {sch.get(block).name_hint for block in workload.blocks}
    sch.pad_einsum(anchor, multiples)
    workload.blocks = list(sch.get_child_blocks(sch.get_sblock("root", func_name="main")))
    copies = []
    for block in workload.before(anchor):
        if sch.get(block).name_hint in names:
            continue
        (read,), (write,) = sch.get(block).reads, sch.get(block).writes
        if [int(d) for d in read.source.shape] == [int(d) for d in write.source.shape]:
            workload.inline(block)  # nothing was padded
        else:
            sch.annotate(block, ROLE, PAD)
            copies.append(block)
    return copies


def pack(workload: Workload, anchor: Block, copies: list[Block], wide: int) -> list[Block]:
    """Copy the right matrix into panels of columns, ``[N', K, wide]``, which also pads it.

    Returns the copies of operands after that.
    """
    sch = workload.sch
    packed = sch.cache_read(anchor, 1, "global")
    sch.transform_layout(anchor, ("read", 1), lambda k, j: (j // wide, k, j % wide))
    sch.annotate(packed, ROLE, PAD)
    k, j = sch.get_loops(packed)
    panel, j = sch.split(j, [None, wide])
    sch.reorder(panel, k, j)
    padding = [sch.get(block).name_hint for block in sch.get_producers(packed)]
    for copy in copies:
        if sch.get(copy).name_hint in padding:
            workload.inline(copy)
    if not padding:
        sch.vectorize(sch.split(j, [None, workload.target.device.channel_block])[1])
    return [*(copy for copy in copies if copy in workload.blocks), packed]


# -- on a GPU -----------------------------------------------------------------------------


@dataclass(frozen=True)
class GroupTile:
    """The loops of a step on a GPU."""

    #: Rows and columns whose sums an item keeps in registers.
    rows: int = 1
    lanes: int = 1
    #: Items of a group along the rows, and as many along the columns.
    group: int = 1
    #: Depth of the tiles in local memory; 0 for none.
    depth: int = 0

    def with_block(self, block: int) -> GroupTile | None:
        """Return the loops with groups of ``block * block`` items; ``None`` for lone items."""
        return replace(self, group=block) if self.group > 1 else None

    def most(self, _rows: int, device: Device) -> int:
        """Return the largest side of a group on a device."""
        return isqrt(device.max_group_size)

    def __call__(self, workload: Workload) -> None:
        """Schedule a product and its epilogue by the tiles of work-groups."""
        sch = workload.sch
        anchor = workload.anchor(NAME)
        samples = [1 for _ in workload.extents(anchor)[:-3]]
        multiples = [self.rows * self.group, self.lanes * self.group, self.depth or 1]
        copies = whole_tiles(workload, anchor, [*samples, *multiples])
        staged = [sch.cache_read(anchor, i, "shared") for i in range(2)] if self.depth else []
        for copy in copies:
            if staged:
                workload.inline(copy)  # the copies to local memory pad
            else:
                workload.bind_outer(sch.get_loops(copy))
        output = workload.merge_epilogue(anchor)
        *batch, i, j, k = sch.get_loops(anchor)
        by, ty, row = sch.split(i, [None, self.group, self.rows])
        bx, tx, lane = sch.split(j, [None, self.group, self.lanes])
        sch.reorder(by, bx, ty, tx, k, row, lane)
        # CUDA allows more than 65,535 groups along x only, and there are many samples and rows.
        by = sch.fuse(*batch, by)
        axes = ("blockIdx.y", "blockIdx.x", "threadIdx.y", "threadIdx.x")
        for loop, axis in zip((bx, by, ty, tx), axes, strict=True):
            sch.bind(loop, axis)
        sch.reverse_compute_at(output, tx, preserve_unit_loops=True)
        vectorize_block(workload, output, tx, self.lanes)
        if staged:
            k, step = sch.split(k, [None, self.depth])
            left, right = staged
            _copy_together(workload, left, k, self.group, 1)
            _copy_together(workload, right, k, self.group, self.lanes)
            # Rows are a word longer, so that items of different rows read different banks.
            sch.storage_align(left, 0, -2, self.depth, 1)
            sch.unroll(step)
        sch.unroll(row)
        if self.lanes > 1:
            sch.vectorize(lane)
        init = sch.decompose_reduction(anchor, k)
        vectorize_block(workload, init, tx, self.lanes)


def _copy_together(workload: Workload, block: Block, above: Loop, group: int, lanes: int) -> None:
    """Let the items of a group copy a tile, neighbouring vectors by neighbouring items."""
    sch = workload.sch
    sch.compute_at(block, above, preserve_unit_loops=True)
    numbers = sch.fuse(*workload.loops_below(block, above))
    _times, ty, tx, lane = sch.split(numbers, [None, group, group, lanes])
    sch.bind(ty, "threadIdx.y")
    sch.bind(tx, "threadIdx.x")
    if lanes > 1:
        sch.vectorize(lane)
