"""The schedule of last resort: right for any primary function.

Elementwise producers are inlined; every block that is left becomes a kernel of
its own, with its data-parallel axes spread over the device and its reductions
as loops.  Injective functions (layout conversions, concat, pad, resize) need no
more than this.
"""

from __future__ import annotations

import logging

from tvm import s_tir
from tvm.tirx import IterVar

from .blocks import is_injective, is_reduction, launches_threads
from .common import Workload

logger = logging.getLogger(__name__)

#: Elements that one CPU work-item computes: enough to hide the launch of a work-group.
CPU_CHUNK = 1024


def schedule(workload: Workload) -> s_tir.Schedule:
    """Schedule each block by itself; never declines."""
    sch = workload.sch
    for block in _inline_producers(workload):
        if launches_threads(sch, block):
            continue
        loops = list(sch.get_loops(block))
        if is_injective(sch, block) or is_reduction(sch, block):
            _spread(workload, block, loops)
        elif workload.target.is_gpu_kernel:
            # An opaque block (a sort, a scan) runs in one work-item, in its own order.
            unit = sch.add_unit_loop(loops[0] if loops else block)
            sch.bind(unit, "blockIdx.x")
    return sch


def _inline_producers(workload: Workload) -> list[s_tir.schedule.SBlockRV]:
    sch = workload.sch
    for block in list(workload.blocks):
        if is_injective(sch, block) and sch.get_consumers(block):
            try:
                workload.inline(block)
            except s_tir.ScheduleError as error:
                logger.debug("kept as a kernel: %s", str(error).splitlines()[-1])
    return workload.blocks


def _spread(
    workload: Workload, block: s_tir.schedule.SBlockRV, loops: list[s_tir.schedule.LoopRV]
) -> None:
    sch = workload.sch
    kinds = [v.iter_type for v in sch.get(block).iter_vars]
    if len(kinds) != len(loops):
        # Loops that do not map one to one to axes (a scalar's block) stay in their order.
        sch_loops = [sch.add_unit_loop(loops[0] if loops else block)]
        if not loops or is_reduction(sch, block):
            workload.bind_outer(sch_loops)
            return
        workload.bind_outer(loops)
        return
    spatial = [x for x, kind in zip(loops, kinds, strict=True) if kind == IterVar.DataPar]
    reduced = [x for x, kind in zip(loops, kinds, strict=True) if kind != IterVar.DataPar]
    if not spatial:
        spatial = [sch.add_unit_loop(loops[0] if loops else block)]
    sch.reorder(*spatial, *reduced)
    if reduced or not workload.is_cpu:
        workload.bind_outer(spatial)
        return
    lane = spatial.pop() if workload.lanes_of(block) else None
    fused = sch.fuse(*spatial) if len(spatial) > 1 else spatial[0]
    chunk = CPU_CHUNK // (int(sch.get(lane).extent) if lane is not None else 1)
    outer, _ = sch.split(fused, [None, min(chunk, int(sch.get(fused).extent))])
    workload.bind_outer([outer])
    if lane is not None:
        sch.vectorize(lane)
