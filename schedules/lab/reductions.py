"""Schedules of sums along rows or over rows, and of functions of rows that use such sums.

    dot[i] = sum_j a[i, j] * b[i, j]      batch_sum[j] = sum_i x[i, j]

A function may have several such blocks, as softmax has: all of them share one loop over rows.
Sums along a row are in the lanes of a vector, which are added up last; on a GPU, in the last step,
in the items of a group, which read neighbours.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from ..common import Block, Loop, Workload, is_reduction
from .steps import LONE_ITEMS, Step, as_written, bind_loops

#: Vectors of independent sums, because each addition waits for the previous one.
VECTORS = 4


def in_vectors(workload: Workload, *, parallel: bool) -> None:
    """Schedule sums on a CPU, by loops over rows, or over columns of a sum over rows."""
    sch, lanes = workload.sch, workload.target.device.channel_block
    if (over := _sum_over_rows(workload)) is not None:
        i, j = sch.get_loops(over)[-1], sch.get_loops(over)[0]
        j, vector, lane = sch.split(j, [None, VECTORS, lanes])
        sch.reorder(j, i, vector, lane)
        j = bind_loops(workload, [j], parallel=parallel)
        workload.vectorize_last([vector, lane])
        workload.vectorize_last(workload.loops_below(sch.decompose_reduction(over, i), j))
        return
    parts = []
    for block in workload.blocks:
        part = None
        if is_reduction(sch, block):
            # Sum in vectors, before the block that sums their lanes.
            _, lane = sch.split(sch.get_loops(block)[-1], [None, VECTORS * lanes])
            part = sch.rfactor(lane, 1)
        parts.append((block, part))
    row = _share_row(workload, [b for pair in parts for b in pair[::-1] if b is not None])
    # The loop is bound before initial values leave their blocks, which then are no reductions.
    row = bind_loops(workload, [row], parallel=parallel)
    for block, part in parts:
        loops = workload.loops_below(block, row)
        if part is None and loops:
            sch.vectorize(sch.split(loops[-1], [None, lanes])[1])
    for _, part in parts:
        if part is not None:
            places, (deep,) = workload.by_kind(part, workload.loops_below(part, row))
            lane = max(places, key=lambda loop: int(sch.get(loop).extent))
            sch.reorder(deep, lane)
            workload.vectorize_last(sch.split(lane, [VECTORS, lanes]))
            init = sch.decompose_reduction(part, deep)
            workload.vectorize_last(workload.loops_below(init, row))


def in_items(workload: Workload, *, group: bool = False, shared: bool = False) -> None:
    """Schedule sums on a GPU: an item computes a row, or the items of a group share it."""
    sch, device = workload.sch, workload.target.device
    if (over := _sum_over_rows(workload)) is not None:
        workload.bind_outer(sch.get_loops(over)[:1], device.group_size if group else 1)
        return
    row = _share_row(workload, workload.blocks, "shared" if shared else "local")
    if not shared:
        workload.bind_outer([row], device.group_size if group else 1)
        return
    sch.bind(row, "blockIdx.x")
    for block in workload.blocks:
        if loops := workload.loops_below(block, row):
            _, item = sch.split(loops[-1], [None, device.group_size])
            sch.bind(item, "threadIdx.x")


def _sum_over_rows(workload: Workload) -> Block | None:
    """Return the only block if it sums over rows and not along them."""
    if len(workload.blocks) > 1:
        return None
    (block,) = workload.blocks
    (read,) = {str(r.region[-1].min) for r in workload.sch.get(block).reads}
    return block if read == str(workload.sch.get(block).iter_vars[0].var) else None


def _share_row(workload: Workload, blocks: list[Block], scope: str = "local") -> Loop:
    """Compute all blocks under one loop over rows; return that loop."""
    sch = workload.sch
    *before, last = blocks
    row: Loop = sch.get_loops(last)[0]
    for block in reversed(before):
        sch.compute_at(block, row, preserve_unit_loops=True)
        sch.set_scope(block, 0, scope)
    return row


NAIVE = Step("naive", "Loops over single numbers, as the definition reads.", "", as_written)
ON_CPU = (
    NAIVE,
    Step(
        "vectorised",
        "Four vectors of sums stay in registers.",
        "One addition at a time, each of which waits for the one before it.",
        partial(in_vectors, parallel=False),
    ),
    Step(
        "parallel",
        "Rows, or columns, are spread over all cores.",
        "One core works.",
        partial(in_vectors, parallel=True),
    ),
)
ON_GPU = (
    Step("naive", "An item computes one result, in a work-group of its own.", "", in_items),
    Step("parallel", "32 or 64 items are a work-group.", LONE_ITEMS, partial(in_items, group=True)),
)
#: Steps of softmax, which calls a function for each power as long as numbers are scalars.
ON_CPU_POWERS = (
    NAIVE,
    replace(
        ON_CPU[1],
        summary="Four vectors of sums stay in registers; powers are arithmetic on vectors.",
        removes="One addition at a time, which waits for the one before it; a call for each power.",
    ),
    *ON_CPU[2:],
)
SHARED = Step(
    "shared",
    "The items of a group share a row: neighbours read neighbouring numbers.",
    "Items read numbers that are a whole row apart, each from a line of its own.",
    partial(in_items, shared=True),
)
