"""How the loops of a data-parallel block are spread over a device.

A CPU's work-item is a stretch of the result: its index arithmetic is done once, and what is
left inside are loops over neighbours.  A GPU's is one vector, or a few that lie far apart, so
that neighbouring work-items touch neighbouring memory.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import s_tir, tirx
from tvm.sym import Analyzer, detect_linear_equation

from ..codegen.masks import keeps_booleans
from ..devices.target import Device
from .access import Nest
from .blocks import calls_scalar_function, gathers_bytes, gathers_channels
from .common import LANES, Workload
from .tiles import largest_divisor, tile_of

#: Elements that one CPU work-item computes: enough to hide the launch of a work-group.
CPU_ELEMENTS = 4096
#: Work-groups that a CPU should have at least, so that all of its cores are busy to the end.
CPU_GROUPS = 16
#: Elements of a result that wakes up a second core: fewer are faster in one work-group.
CPU_LEAST = 1024
#: Parts of a loop that are written out, so that none of them tests where it is.
MOST_SEAMS = 7
#: A stretch of the innermost loop that is shorter is not worth its own index arithmetic.
_SHORTEST = 64


def widest_vector(workload: Workload, block: s_tir.schedule.SBlockRV, nest: Nest) -> int:
    """Lanes of the widest vector that the innermost loop can be computed in; 1: none.

    All lanes of a short loop (the channels of a block) are one vector even where they are
    gathered one by one: they are stored together.
    """
    found = workload.sch.get(block)
    if keeps_booleans(found) or calls_scalar_function(found):
        return 1
    lane = found.iter_vars[-1].var
    if gathers_channels(found, lane) or gathers_bytes(found, lane):
        return 1
    extent = nest.extents[-1]
    if workload.writes_texture(block) or not nest.moves_vectors:
        return extent if extent in LANES and len(nest.extents) > 1 else 1
    most = workload.target.device.channel_block
    return max((lanes for lanes in LANES if lanes <= most and extent % lanes == 0), default=1)


def items_for(total: int, vector: int, device: Device) -> int:
    """How many of ``total`` vectors a work-item computes: one on GPUs, a stretch on CPUs."""
    if not device.is_cpu:
        return 1
    least = max(CPU_LEAST // vector, -(-total // CPU_GROUPS))
    return max(1, min(CPU_ELEMENTS // vector, least, total))


def spread(
    workload: Workload,
    block: s_tir.schedule.SBlockRV,
    nest: Nest,
    vector: int,
    items: int,
    group_size: int,
) -> None:
    """Bind a block's loops: ``items`` vectors of ``vector`` elements for each work-item."""
    sch = workload.sch
    loops, extents = list(nest.loops), list(nest.extents)
    lane = None
    if workload.writes_texture(block):
        # A whole texel, in a loop over its channels where it has to be.
        lane = loops.pop()
        extents.pop()
    elif vector > 1:
        rest, lane = sch.split(loops[-1], [None, vector])
        loops[-1], extents[-1] = rest, extents[-1] // vector
    if not loops:
        loops, extents = [sch.add_unit_loop(lane if lane is not None else block)], [1]
    if workload.is_cpu:
        outer = _stretch(sch, loops, extents, items)
        seams = seams_of(workload, block, nest)
        inner = loops[-1]
        workload.bind_outer(outer)
        if lane is None and len(outer) < len(loops) and 0 < len(seams) <= MOST_SEAMS:
            ends = [*seams, extents[-1]]
            parts = [end - begin for begin, end in zip([0, *seams], ends, strict=True)]
            sch.loop_partition(inner, [*parts[:-1], None])
    else:
        if items > 1:
            # Of the next outer loop, so that neighbours stay with neighbouring work-items.
            at = max(0, len(loops) - 2)
            few = min(items, extents[at])
            loops[at], inner = _reversed_split(sch, loops[at], few)
            sch.reorder(*loops, inner)
            if lane is not None:
                sch.reorder(inner, lane)
            sch.unroll(inner)
        workload.bind_outer(loops, group_size)
    if lane is not None and vector > 1:
        sch.vectorize(lane)


def seams_of(workload: Workload, block: s_tir.schedule.SBlockRV, nest: Nest) -> list[int]:
    """Values of the innermost loop from which a test of it alone has another result."""
    found = workload.sch.get(block)
    if len(found.iter_vars) != len(nest.loops):
        return []
    var, extent = found.iter_vars[-1].var, nest.extents[-1]
    seams: set[int] = set()

    def visit(test: Any) -> None:
        swapped = isinstance(test, (tirx.GT, tirx.GE))
        low, high = (test.b, test.a) if swapped else (test.a, test.b)
        step = detect_linear_equation(Analyzer().simplify(high - low), [var])
        if len(step) != 2 or not all(isinstance(s, tirx.IntImm) for s in step):
            return
        # The test is ``step * var + rest >= 0``, or ``> 0``.
        rest = int(step[1]) - isinstance(test, (tirx.LT, tirx.GT))
        if int(step[0]) == 1:
            seams.add(-rest)
        elif int(step[0]) == -1:
            seams.add(rest + 1)

    tvm_ffi.structural_walk(found.body, ((tirx.LT, tirx.LE, tirx.GT, tirx.GE), visit))
    return sorted(seam for seam in seams if 0 < seam < extent)


def _reversed_split(
    sch: s_tir.Schedule, loop: s_tir.schedule.LoopRV, parts: int
) -> tuple[s_tir.schedule.LoopRV, s_tir.schedule.LoopRV]:
    """Split a loop into ``parts`` stretches; return the loop along one, and that over them."""
    over, along = sch.split(loop, [parts, None])
    return along, over


def _stretch(
    sch: s_tir.Schedule, loops: list[s_tir.schedule.LoopRV], extents: list[int], items: int
) -> list[s_tir.schedule.LoopRV]:
    """The loops outside of a stretch of about ``items`` iterations, at least one."""
    at = len(loops)
    while at and extents[at - 1] <= items:
        at -= 1
        items //= extents[at]
    if at == 0:
        return [sch.add_unit_loop(loops[0])]
    if items > 1:
        extent = extents[at - 1]
        size = tile_of(extent, items)
        if at == len(loops) and extent % size:
            # A test in the innermost loop costs more than stretches of another length.
            divisor = largest_divisor(extent, items)
            size = divisor if divisor >= _SHORTEST else size
        loops[at - 1], _ = sch.split(loops[at - 1], [None, size])
    return loops[:at]
