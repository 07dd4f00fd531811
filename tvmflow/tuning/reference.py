"""The kernel that shows whether a device runs as fast as it did at first."""

from __future__ import annotations

from tvm import te

from ..devices.target import TargetSpec
from .tasks import Task, task_of

#: Its extents: some milliseconds on a phone, and nothing that a cache is too small for.
_ROWS, _SUM = 4096, 256


def reference_task(target: TargetSpec) -> Task:
    """Sums of products with a fixed schedule: what it takes depends on the clock alone."""
    x = te.placeholder((_ROWS, _SUM), name="x")
    k = te.reduce_axis((0, _SUM), name="k")
    y = te.compute((_ROWS,), lambda i: te.sum(x[i, k] * x[i, k], axis=k), name="y")
    with target.tvm_target:
        return task_of("reference", te.create_prim_func([x, y]), target, 1, 1)
