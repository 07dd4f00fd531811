"""Reductions (sum, mean, max, min, product) over any axes, one work-item an output.

Serves any function with exactly one reduction, elementwise producers before it
and elementwise consumers after it; what it computes comes from the operator.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from math import prod

from tvm import s_tir
from tvm.tirx import IterVar

from .blocks import is_injective, is_reduction
from .common import LANES, Workload
from .family import Constraint, NoKnobs, no_choice, no_space

logger = logging.getLogger(__name__)

NAME = "reduction"
CONSTRAINTS: tuple[Constraint, ...] = ()
Knobs, space, heuristic = NoKnobs, no_space, no_choice


@dataclass(frozen=True)
class Shape:
    """What is computed and what is summed up for it."""

    outputs: int
    reduced: int


def match(workload: Workload) -> Shape | None:
    """The shape of a function with one reduction."""
    sch = workload.sch
    reductions = _reductions(workload)
    if len(reductions) != 1 or any(
        not (is_injective(sch, b) or is_reduction(sch, b)) for b in workload.blocks
    ):
        logger.debug("reduction declines: %d reductions", len(reductions))
        return None
    kinds = [v.iter_type for v in sch.get(reductions[0]).iter_vars]
    extents = workload.extents(reductions[0])
    if len(kinds) != len(extents):
        return None
    pairs = list(zip(extents, kinds, strict=True))
    return Shape(
        prod(extent for extent, kind in pairs if kind == IterVar.DataPar),
        prod(extent for extent, kind in pairs if kind == IterVar.CommReduce),
    )


def _reductions(workload: Workload) -> list[s_tir.schedule.SBlockRV]:
    return [b for b in workload.blocks if is_reduction(workload.sch, b)]


def apply(workload: Workload, knobs: NoKnobs) -> s_tir.Schedule:
    """Sum up in private memory, in vectors where the output has lanes."""
    sch = workload.sch
    anchor = _reductions(workload)[0]
    for block in workload.before(anchor):
        workload.inline(block)
    output = workload.merge_epilogue(anchor)
    loops = list(sch.get_loops(output))
    vector = workload.lanes_of(output) > 0
    lane = loops.pop() if vector or workload.writes_texture(output) else None
    if not loops:
        loops = [sch.add_unit_loop(output)]
    item = workload.bind_outer(loops)
    sch.compute_at(anchor, item, preserve_unit_loops=True)
    below = workload.loops_below(anchor, item)
    kinds = [v.iter_type for v in sch.get(anchor).iter_vars][-len(below) :]
    spatial = [x for x, kind in zip(below, kinds, strict=True) if kind == IterVar.DataPar]
    reduced = [x for x, kind in zip(below, kinds, strict=True) if kind == IterVar.CommReduce]
    sch.reorder(*reduced, *spatial)
    if vector:
        sch.vectorize(lane)
        # Before it is split: alone, what is left of a reduction reads what it writes.
        _vectorize_if_wide(workload, anchor, item)
    init = sch.decompose_reduction(anchor, reduced[0])
    if vector:
        _vectorize_if_wide(workload, init, item)
    return sch


def _vectorize_if_wide(workload: Workload, block: s_tir.schedule.SBlockRV, above: object) -> None:
    last = workload.loops_below(block, above)[-1]
    if int(workload.sch.get(last).extent) in LANES:
        workload.sch.vectorize(last)
