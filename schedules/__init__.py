"""The schedule library: one operator family a file.

Each family states what it computes (TE, with shapes), its knobs, and how it is
scheduled, in this order.  :func:`schedule_function` tries the families from the
most specific to the fallback; a family that does not apply declines with
``None`` and logs why.
"""

from __future__ import annotations

import logging

from tvm import s_tir, tirx

from ..target import TargetSpec
from . import (
    conv2d,
    conv2d_transpose,
    dense,
    depthwise,
    fallback,
    grouped,
    pooling,
    reduction,
    softmax,
)
from .blocks import launches_threads
from .common import Workload

logger = logging.getLogger(__name__)

#: Families in the order in which they are asked; the last one never declines.
FAMILIES = (
    conv2d,
    depthwise,
    grouped,
    conv2d_transpose,
    pooling,
    dense,
    softmax,
    reduction,
    fallback,
)


def schedule_function(function: tirx.PrimFunc, target: TargetSpec) -> tuple[s_tir.Schedule, str]:
    """Schedule one primary function for a target.

    Returns
    -------
    schedule, family
        The schedule and the name of the family that made it.
    """
    for family in FAMILIES:
        # A family may have transformed the function before it declined: each gets a fresh one.
        workload = Workload.of(function, target)
        try:
            schedule = family.schedule(workload)
        except s_tir.ScheduleError as error:
            logger.debug("%s failed: %s", family.__name__, str(error).splitlines()[-1])
            schedule = None
        if schedule is not None and _runs_on_device(schedule, target):
            return schedule, family.__name__.rsplit(".", 1)[-1]
    raise AssertionError("the fallback family schedules every primary function")


def _runs_on_device(schedule: s_tir.Schedule, target: TargetSpec) -> bool:
    """Whether no block is left to the host, which cannot read the device's memory."""
    if not target.is_gpu_kernel:
        return True
    root = schedule.get_sblock("root", func_name="main")
    left = [b for b in schedule.get_child_blocks(root) if not launches_threads(schedule, b)]
    if left:
        names = ", ".join(str(schedule.get(block).name_hint) for block in left)
        logger.debug("a schedule left %s to the host", names)
    return not left


__all__ = ["FAMILIES", "schedule_function"]
