"""Schedules of elementwise functions: one number at a time, in vectors, on all cores.

:mod:`.formulas` defines the computations.  Each number is read or written once, so that memory
limits the last step.
"""

from __future__ import annotations

from functools import partial

from ..common import Workload
from .steps import LONE_ITEMS, Step, as_written, bind_loops


def in_vectors(workload: Workload, *, parallel: bool) -> None:
    """Schedule an elementwise function on a CPU."""
    sch = workload.sch
    (block,) = workload.blocks
    i, j = sch.get_loops(block)
    bind_loops(workload, [i], parallel=parallel)
    sch.vectorize(sch.split(j, [None, workload.target.device.channel_block])[1])


def in_items(workload: Workload, *, vectors: bool = False, groups: bool = False) -> None:
    """Schedule an elementwise function on a GPU: one vector an item, or one number."""
    sch = workload.sch
    (block,) = workload.blocks
    i, j = sch.get_loops(block)
    if vectors:
        j, lane = sch.split(j, [None, workload.target.device.channel_block])
        sch.vectorize(lane)
    # The loops are fused into one axis: CUDA allows more than 65,535 groups along x only.
    workload.bind_outer([sch.fuse(i, j)], workload.target.device.group_size if groups else 1)


ON_CPU = (
    Step("naive", "Two loops over single numbers.", "", as_written),
    Step(
        "vectorised",
        "16 numbers at a time: in fp32 a vector of 512 bits.",
        "One number at a time, where the compiler has not made vectors by itself: LLVM often has.",
        partial(in_vectors, parallel=False),
    ),
    Step(
        "parallel",
        "Rows are spread over all cores.",
        "One core, which cannot have as many lines of memory on their way as the memory serves.",
        partial(in_vectors, parallel=True),
    ),
)
ON_GPU = (
    Step("naive", "An item computes one number, in a work-group of its own.", "", in_items),
    Step(
        "vectorised",
        "An item computes four neighbours.",
        "One number is read at a time.",
        partial(in_items, vectors=True),
    ),
    Step(
        "parallel",
        "32 or 64 items are a work-group: neighbours read neighbouring vectors.",
        LONE_ITEMS,
        partial(in_items, vectors=True, groups=True),
    ),
)
