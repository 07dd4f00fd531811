"""The fallback schedule, which is correct for any primary function.

Elementwise producers are inlined; every remaining block becomes a kernel of its own, with
its data-parallel axes distributed over the device and its reductions as loops.  Injective
functions (layout conversions, concat, pad, resize) need no more than this.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from math import prod

from tvm import s_tir

from ..devices.target import Device
from .common import Block, Loop, Workload, is_injective, is_reduction, launches_threads
from .data_parallel import CPU_ELEMENTS, CPU_GROUPS, distribute, nest_of, widest_vector
from .family import GROUP_FITS, Value, knob
from .sizes import LANES, group_sizes

logger = logging.getLogger(__name__)

NAME = "fallback"
#: The fallback is tried last, as it never declines.
ORDER = 1000

#: Outputs of a reduction that one CPU work-item computes.
CPU_CHUNK = 1024


@dataclass(frozen=True)
class Shape:
    """The number of blocks, the only fact that is known of any function."""

    blocks: int


@dataclass(frozen=True)
class Knobs:
    """Knobs of the part of each data-parallel block that a work-item computes."""

    elements: int = knob("Most elements that a work-item computes; on a GPU they are one vector.")
    vector: int = knob("Most lanes of a vector of neighbouring elements.")
    group_size: int = knob("Most work-items of a work-group.")


CONSTRAINTS = {
    "vector is 1 or the width of a vector type.": lambda k, s, d: k.vector in (1, *LANES),
    **GROUP_FITS,
}


def heuristic(shape: Shape, device: Device) -> Knobs:
    """Return the sizes of :mod:`.data_parallel`, as for a function of one block."""
    elements = CPU_ELEMENTS if device.is_cpu else device.channel_block
    return Knobs(elements, max(LANES), device.group_size)


def space(shape: Shape, device: Device) -> dict[str, tuple[Value, ...]]:
    """Return work-items and vectors of several sizes."""
    elements = (256, 1024, 4096, 16384) if device.is_cpu else (1, 4, 8, 16)
    return {"elements": elements, "vector": (1, *LANES), "group_size": group_sizes(device)}


def match(workload: Workload) -> Shape:
    """Return the shape of any function; never declines."""
    return Shape(len(workload.blocks))


def apply(workload: Workload, knobs: Knobs) -> s_tir.Schedule:
    """Schedule each block separately."""
    sch = workload.sch
    for block in list(workload.blocks):
        if is_injective(sch, block) and sch.get_consumers(block):
            try:
                workload.inline(block)
            except s_tir.ScheduleError as error:
                logger.debug("kept as a kernel: %s", str(error).splitlines()[-1])
    for block in workload.blocks:
        if launches_threads(sch, block):
            continue
        if is_injective(sch, block) and _schedule_elementwise(workload, block, knobs):
            continue
        loops = list(sch.get_loops(block))
        if is_reduction(sch, block) and workload.writes_converted(block):
            # Stores convert, or are whole texels, so sums are kept in private memory.
            copy = sch.cache_write(block, 0, "local")
            sch.compute_at(block, _bind_results(workload, copy, list(sch.get_loops(copy))))
        elif is_injective(sch, block) or is_reduction(sch, block):
            _bind_results(workload, block, loops)
        elif workload.target.is_gpu_kernel:
            # An opaque block (a sort, a scan) runs in one work-item, in its own order.
            unit = sch.add_unit_loop(loops[0] if loops else block)
            sch.bind(unit, "blockIdx.x")
    return sch


def schedule_block(workload: Workload, block: Block) -> None:
    """Schedule a block as a kernel of its own."""
    knobs = heuristic(Shape(1), workload.target.device)
    if not (is_injective(workload.sch, block) and _schedule_elementwise(workload, block, knobs)):
        _bind_results(workload, block, list(workload.sch.get_loops(block)))


def _schedule_elementwise(workload: Workload, block: Block, knobs: Knobs) -> bool:
    """Distribute a data-parallel block; return ``False`` unless each axis has its own loop."""
    nest = nest_of(workload, block)
    if nest is None or not nest.loops:
        return False
    vector = widest_vector(workload, block, nest)
    if not workload.writes_texture(block):
        while vector > knobs.vector:
            vector //= 2
    items = max(1, knobs.elements // vector)
    if workload.is_cpu:
        items = max(1, min(items, prod(nest.extents) // vector // CPU_GROUPS))
    distribute(workload, block, nest, vector, items, knobs.group_size)
    return True


def _bind_results(workload: Workload, block: Block, loops: list[Loop]) -> Loop:
    """Distribute a block's loops over the device; return the innermost bound one."""
    sch = workload.sch
    if len(sch.get(block).iter_vars) != len(loops):
        # Loops that do not map one to one to axes (a scalar's block) stay in their order.
        unit = sch.add_unit_loop(loops[0] if loops else block)
        return workload.bind_outer(loops if loops and not is_reduction(sch, block) else [unit])
    spatial, reduced = workload.by_kind(block, loops)
    if not spatial:
        spatial = [sch.add_unit_loop(loops[0] if loops else block)]
    sch.reorder(*spatial, *reduced)
    vector = workload.lanes_of(block) > 0
    # A work-item writes a whole texel, in a loop over its channels if vectors are not possible.
    texels = workload.writes_texture(block)
    if not texels and (reduced or not workload.is_cpu):
        return workload.bind_outer(spatial)
    lane = spatial.pop() if texels or vector else None
    if workload.is_cpu:
        fused = workload.fuse(spatial)
        chunk = CPU_CHUNK // (int(sch.get(lane).extent) if lane is not None else 1)
        outer, _ = sch.split(fused, [None, min(chunk, int(sch.get(fused).extent))])
        spatial = [outer]
    bound = workload.bind_outer(spatial)
    if vector:
        sch.vectorize(lane)
    return bound
