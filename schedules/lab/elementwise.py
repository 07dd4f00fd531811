"""Elementwise functions of rows of numbers: one at a time, in vectors, on all cores.

    a[N, 1024]   b[N, 1024]      sum[i, j] = a[i, j] + b[i, j]
    x[N, 1024]                   relu[i, j] = max(x[i, j], 0)

Each number is read or written once: what holds the last step back is memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from tvm import te, tirx

from ..common import Workload
from .steps import LONE_ITEMS, Lab, Step, as_written, bind_loops

#: Numbers of a row: whole vectors.
ROW = 1024
#: Rows of which two tensors in fp32, 128 MiB, are more than the cache of some cores holds.
ROWS = 16384


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


def rows(size: int, rng: np.random.Generator, *, count: int) -> list[np.ndarray]:
    """Tensors of normally distributed numbers."""
    return [rng.standard_normal((size, ROW), np.float32) for _ in range(count)]


def _sum_of(a: np.ndarray, b: np.ndarray) -> Callable[[], object]:
    return partial(np.add, a, b, out=np.empty_like(a))


def _relu_of(x: np.ndarray) -> Callable[[], object]:
    return partial(np.maximum, x, np.float32(0), out=np.empty_like(x))


# -- how they are scheduled ---------------------------------------------------------------


@dataclass(frozen=True)
class Parts:
    """The loops that a step makes vectors of, or distributes."""

    vectors: bool = False
    parallel: bool = False


def in_parts(workload: Workload, parts: Parts) -> None:
    """Schedule an elementwise function on a CPU."""
    sch = workload.sch
    (block,) = workload.blocks
    i, j = sch.get_loops(block)
    bind_loops(workload, [i], parallel=parts.parallel)
    sch.vectorize(sch.split(j, [None, workload.target.device.channel_block])[1])


def in_items(workload: Workload, parts: Parts) -> None:
    """Schedule an elementwise function on a GPU: one vector an item, or one number."""
    sch = workload.sch
    (block,) = workload.blocks
    i, j = sch.get_loops(block)
    if parts.vectors:
        j, lane = sch.split(j, [None, workload.target.device.channel_block])
        sch.vectorize(lane)
    # As one axis: CUDA has room for more than 65,535 groups along x only.
    group = workload.target.device.group_size if parts.parallel else 1
    workload.bind_outer([sch.fuse(i, j)], group)


ON_CPU = (
    Step("naive", "Two loops over single numbers.", "", as_written),
    Step(
        "vectorised",
        "16 numbers at a time: in fp32 a vector of 512 bits.",
        "One number at a time, where the compiler has not made vectors by itself: LLVM often has.",
        partial(in_parts, parts=Parts(vectors=True)),
    ),
    Step(
        "parallel",
        "Rows are spread over all cores.",
        "One core, which cannot have as many lines of memory on their way as the memory serves.",
        partial(in_parts, parts=Parts(vectors=True, parallel=True)),
    ),
)
ON_GPU = (
    Step(
        "naive",
        "An item computes one number, in a work-group of its own.",
        "",
        partial(in_items, parts=Parts()),
    ),
    Step(
        "vectorised",
        "An item computes four neighbours.",
        "One number is read at a time.",
        partial(in_items, parts=Parts(vectors=True)),
    ),
    Step(
        "parallel",
        "32 or 64 items are a work-group: neighbours read neighbouring vectors.",
        LONE_ITEMS,
        partial(in_items, parts=Parts(vectors=True, parallel=True)),
    ),
)


COUNTS = "rows of 1,024 numbers"
LABS = (
    Lab(
        name="add",
        summary="Sum of two tensors of fp32 numbers.",
        counts=COUNTS,
        size=ROWS,
        compute=compute_sum,
        operands=partial(rows, count=2),
        reference=np.add,
        baseline=_sum_of,
        operations=lambda size: size * ROW,
        on_cpu=ON_CPU,
        on_gpu=ON_GPU,
    ),
    Lab(
        name="relu",
        summary="The larger one of each fp32 number and zero.",
        counts=COUNTS,
        size=ROWS,
        compute=compute_relu,
        operands=partial(rows, count=1),
        reference=lambda x: np.maximum(x, np.float32(0)),
        baseline=_relu_of,
        operations=lambda size: size * ROW,
        on_cpu=ON_CPU,
        on_gpu=ON_GPU,
    ),
)
