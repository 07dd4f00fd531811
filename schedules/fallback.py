"""The schedule of last resort: right for any primary function.

Elementwise producers are inlined; every block that is left becomes a kernel of
its own, with its data-parallel axes spread over the device and its reductions
as loops.  Injective functions (layout conversions, concat, pad, resize) need no
more than this.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from tvm import s_tir
from tvm.tirx import IterVar

from .blocks import is_injective, is_reduction, launches_threads
from .common import Workload
from .family import Constraint, NoKnobs, no_choice, no_space

logger = logging.getLogger(__name__)

NAME = "fallback"
CONSTRAINTS: tuple[Constraint, ...] = ()
Knobs, space, heuristic = NoKnobs, no_space, no_choice

#: Elements that one CPU work-item computes: enough to hide the launch of a work-group.
CPU_CHUNK = 1024


@dataclass(frozen=True)
class Shape:
    """How many blocks there are, which is all that can be said of any function."""

    blocks: int


def match(workload: Workload) -> Shape:
    """Never declines."""
    return Shape(len(workload.blocks))


def apply(workload: Workload, knobs: NoKnobs) -> s_tir.Schedule:
    """Schedule each block by itself."""
    sch = workload.sch
    for block in _inline_producers(workload):
        if launches_threads(sch, block):
            continue
        loops = list(sch.get_loops(block))
        if is_reduction(sch, block) and workload.writes_converted(block):
            # What is stored is rounded, or whole texels: sums are taken in private memory.
            copy = sch.cache_write(block, 0, "local")
            sch.compute_at(block, _spread(workload, copy, list(sch.get_loops(copy))))
        elif is_injective(sch, block) or is_reduction(sch, block):
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


def spread(workload: Workload, block: s_tir.schedule.SBlockRV) -> None:
    """Make a block a kernel of its own."""
    _spread(workload, block, list(workload.sch.get_loops(block)))


def _spread(
    workload: Workload, block: s_tir.schedule.SBlockRV, loops: list[s_tir.schedule.LoopRV]
) -> s_tir.schedule.LoopRV:
    """Spread a block's loops over the device; return the innermost that is bound."""
    sch = workload.sch
    kinds = [v.iter_type for v in sch.get(block).iter_vars]
    if len(kinds) != len(loops):
        # Loops that do not map one to one to axes (a scalar's block) stay in their order.
        unit = sch.add_unit_loop(loops[0] if loops else block)
        return workload.bind_outer(loops if loops and not is_reduction(sch, block) else [unit])
    spatial = [x for x, kind in zip(loops, kinds, strict=True) if kind == IterVar.DataPar]
    reduced = [x for x, kind in zip(loops, kinds, strict=True) if kind != IterVar.DataPar]
    if not spatial:
        spatial = [sch.add_unit_loop(loops[0] if loops else block)]
    sch.reorder(*spatial, *reduced)
    vector = workload.lanes_of(block) > 0
    # A work-item writes a whole texel, in a loop over its channels where it has to.
    texels = workload.writes_texture(block)
    if not texels and (reduced or not workload.is_cpu):
        return workload.bind_outer(spatial)
    lane = spatial.pop() if texels or vector else None
    if workload.is_cpu:
        fused = sch.fuse(*spatial) if len(spatial) > 1 else spatial[0]
        chunk = CPU_CHUNK // (int(sch.get(lane).extent) if lane is not None else 1)
        outer, _ = sch.split(fused, [None, min(chunk, int(sch.get(fused).extent))])
        spatial = [outer]
    bound = workload.bind_outer(spatial)
    if vector:
        sch.vectorize(lane)
    return bound
