"""Softmax and log-softmax along one axis, stable for any finite input.

Computes, for each row along the axis::

    m = max_k x[k]     s = sum_k exp(x[k] - m)
    softmax: y[k] = exp(x[k] - m) / s          log-softmax: y[k] = x[k] - m - log(s)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tvm import s_tir, te, tirx

from .common import FAMILY, ROLE, Workload
from .family import Constraint, NoKnobs, no_choice, no_space

NAME = "softmax"
CONSTRAINTS: tuple[Constraint, ...] = ()
Knobs, space, heuristic = NoKnobs, no_space, no_choice


# -- what it computes ---------------------------------------------------------------------


def compute(x: te.Tensor, axis: int, log: bool) -> te.Tensor:
    """Softmax of ``x`` along ``axis`` as TE; the shape is that of ``x``."""
    rows = [d for a, d in enumerate(x.shape) if a != axis]

    def at(index: Sequence[tirx.PrimExpr], k: tirx.PrimExpr) -> list[tirx.PrimExpr]:
        return [*index[:axis], k, *index[axis:]]

    k = te.reduce_axis((0, x.shape[axis]), name="k")
    j = te.reduce_axis((0, x.shape[axis]), name="j")
    peak = te.compute(
        rows or (1,),
        lambda *r: te.max(x(*at(r if rows else (), k)), axis=k),
        name="peak",
        attrs={ROLE: "row"},
    )

    def shifted(r: Sequence[tirx.PrimExpr], at_k: tirx.PrimExpr) -> tirx.PrimExpr:
        return x(*at(r, at_k)) - peak(*(r or (0,)))

    total = te.compute(
        rows or (1,),
        lambda *r: te.sum(tirx.exp(shifted(r if rows else (), j)), axis=j),
        name="total",
        attrs={ROLE: "row"},
    )

    def body(*index: tirx.PrimExpr) -> tirx.PrimExpr:
        row = [i for a, i in enumerate(index) if a != axis]
        value = shifted(row, index[axis])
        denominator = total(*(row or (0,)))
        return value - tirx.log(denominator) if log else tirx.exp(value) / denominator

    return te.compute(x.shape, body, name="softmax", attrs={FAMILY: NAME, "tvmflow.axis": axis})


# -- how it is scheduled ------------------------------------------------------------------


@dataclass(frozen=True)
class Shape:
    """Number of rows, and the length of one."""

    rows: int
    length: int


def match(workload: Workload) -> Shape | None:
    """The shape of a softmax that nothing is fused behind."""
    anchor = workload.anchor(NAME)
    if anchor is None or workload.after(anchor):
        return None
    extents = workload.extents(anchor)
    length = extents[_axis(workload, anchor)]
    return Shape(prod(extents) // length, length)


def _axis(workload: Workload, anchor: s_tir.schedule.SBlockRV) -> int:
    return int(workload.annotation(anchor, "tvmflow.axis") or 0)


def apply(workload: Workload, knobs: NoKnobs) -> s_tir.Schedule:
    """A work-item a row, with the row's maximum and sum in private memory."""
    anchor = workload.anchor(NAME)
    sch = workload.sch
    axis = _axis(workload, anchor)
    loops = sch.get_loops(anchor)
    rows = [loop for a, loop in enumerate(loops) if a != axis]
    if not rows:
        rows = [sch.add_unit_loop(loops[0])]
    sch.reorder(*rows, loops[axis])
    item = workload.bind_outer(rows)
    # In reverse order of use, so that each is still needed where it is moved to.
    for block in reversed([b for b in workload.blocks if workload.annotation(b, ROLE) == "row"]):
        sch.set_scope(block, 0, "local")
        sch.compute_at(block, item)
    return sch
