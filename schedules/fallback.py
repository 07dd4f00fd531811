"""The schedule of last resort: right for any primary function.

Elementwise producers are inlined; every block that is left becomes a kernel of
its own, with its data-parallel axes spread over the device and its reductions
as loops.  Injective functions (layout conversions, concat, pad, resize) need no
more than this.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from math import prod

from tvm import s_tir
from tvm.tirx import IterVar

from ..devices.target import Device
from .access import nest_of
from .blocks import is_injective, is_reduction, launches_threads
from .common import LANES, Workload
from .family import GROUP_FITS, Constraint, Value, knob
from .spread import CPU_ELEMENTS, CPU_GROUPS, widest_vector
from .spread import spread as spread_nest
from .tiles import group_sizes

logger = logging.getLogger(__name__)

NAME = "fallback"

#: Outputs of a reduction that one CPU work-item computes.
CPU_CHUNK = 1024


@dataclass(frozen=True)
class Shape:
    """How many blocks there are, which is all that can be said of any function."""

    blocks: int


@dataclass(frozen=True)
class Knobs:
    """What a work-item computes of each data-parallel block."""

    elements: int = knob("Elements that a work-item computes, at most; a GPU's one vector.")
    vector: int = knob("Lanes of a vector of neighbouring elements, at most.")
    group_size: int = knob("Work-items of a work-group, at most.")


CONSTRAINTS = (
    Constraint(
        "vector is 1 or the width of a vector type.", lambda k, s, d: k.vector in (1, *LANES)
    ),
    GROUP_FITS,
)


def heuristic(shape: Shape, device: Device) -> Knobs:
    """As for a function of one block: see :mod:`.spread`."""
    elements = CPU_ELEMENTS if device.is_cpu else device.channel_block
    return Knobs(elements, max(LANES), device.group_size)


def space(shape: Shape, device: Device) -> dict[str, tuple[Value, ...]]:
    """Work-items and vectors of several sizes."""
    elements = (256, 1024, 4096, 16384) if device.is_cpu else (1, 4, 8, 16)
    return {"elements": elements, "vector": (1, *LANES), "group_size": group_sizes(device)}


def match(workload: Workload) -> Shape:
    """Never declines."""
    return Shape(len(workload.blocks))


def apply(workload: Workload, knobs: Knobs) -> s_tir.Schedule:
    """Schedule each block by itself."""
    sch = workload.sch
    for block in _inline_producers(workload):
        if launches_threads(sch, block):
            continue
        if is_injective(sch, block) and _spread_elements(workload, block, knobs):
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
    knobs = heuristic(Shape(1), workload.target.device)
    if not (is_injective(workload.sch, block) and _spread_elements(workload, block, knobs)):
        _spread(workload, block, list(workload.sch.get_loops(block)))


def _spread_elements(workload: Workload, block: s_tir.schedule.SBlockRV, knobs: Knobs) -> bool:
    """Spread a data-parallel block; ``False`` if its loops do not map one to one to its axes."""
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
    spread_nest(workload, block, nest, vector, items, knobs.group_size)
    return True


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
