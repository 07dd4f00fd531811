"""Elementwise functions of rows of numbers: one at a time, in vectors, on all cores.

    a[N, 1024]   b[N, 1024]      sum[i, j] = a[i, j] + b[i, j]
    x[N, 1024]                   relu[i, j] = max(x[i, j], 0)

Each number is read or written once: what holds the last step back is memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
from tvm import te, tirx

from ..common import Workload
from .steps import LONE_ITEMS, Lab, Step, as_written, bind_loops, normal_operands

#: Numbers of a row: whole vectors.
ROW = 1024


# -- what they compute --------------------------------------------------------------------


def compute_sum(size: int) -> list[te.Tensor]:
    """The arguments and the result."""
    a, b = (te.placeholder((size, ROW), "float32", name=name) for name in "ab")
    return [a, b, te.compute((size, ROW), lambda i, j: a[i, j] + b[i, j], name="sum")]


def compute_relu(size: int) -> list[te.Tensor]:
    """The argument and the result."""
    x = te.placeholder((size, ROW), "float32", name="x")
    zero = tirx.const(0, "float32")
    return [x, te.compute((size, ROW), lambda i, j: tirx.max(x[i, j], zero), name="relu")]


def maximum_of(x: np.ndarray) -> Callable[[], object]:
    """NumPy's maximum of fp32 numbers and zero."""
    return partial(np.maximum, x, np.float32(0), out=np.empty_like(x))


# -- how they are scheduled ---------------------------------------------------------------


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
    # As one axis: CUDA has room for more than 65,535 groups along x only.
    workload.bind_outer([sch.fuse(i, j)], workload.target.device.group_size if groups else 1)


ADD = Lab(
    name="add",
    summary="Sum of two tensors of fp32 numbers.",
    counts="rows of 1,024 numbers",
    # Two tensors in fp32, 128 MiB, are more than the cache of some cores holds.
    size=16384,
    compute=compute_sum,
    operands=normal_operands(compute_sum),
    reference=np.add,
    baseline=lambda a, b: partial(np.add, a, b, out=np.empty_like(a)),
    operations=lambda size: size * ROW,
    on_cpu=(
        Step("naive", "Two loops over single numbers.", "", as_written),
        Step(
            "vectorised",
            "16 numbers at a time: in fp32 a vector of 512 bits.",
            "One number at a time, where the compiler has not made vectors by itself: LLVM often "
            "has.",
            partial(in_vectors, parallel=False),
        ),
        Step(
            "parallel",
            "Rows are spread over all cores.",
            "One core, which cannot have as many lines of memory on their way as the memory "
            "serves.",
            partial(in_vectors, parallel=True),
        ),
    ),
    on_gpu=(
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
    ),
)
RELU = replace(
    ADD,
    name="relu",
    summary="The larger one of each fp32 number and zero.",
    compute=compute_relu,
    operands=normal_operands(compute_relu),
    reference=lambda x: np.maximum(x, np.float32(0)),
    baseline=maximum_of,
)
