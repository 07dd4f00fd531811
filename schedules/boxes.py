"""Functions of boxes, box by box: all coordinates of a box from one evaluation.

Computes, for boxes ``b, m`` and coordinates ``k``::

    y[b, m, k] = f_k(x[b, m, 0:4], ...)          or one number a box, y[b, m] = f(x[b, m, 0:4], ...)

Several such outputs over the same boxes are one loop nest.  A work-item of a GPU takes whole
boxes, each of them one vector of four or one texel; a CPU's computes the boxes of a stretch, 16
at a time: see :mod:`.box_vectors`.  Extents may be variables.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from tvm import s_tir, te, tirx

from ..target import Device
from .blocks import is_injective
from .box_items import box_statement
from .box_loops import loop, opaque, product, sequence, unravel, with_statements
from .box_nests import Nest, nests_of
from .box_vectors import stretch
from .common import FAMILY, LANES, Workload
from .family import GROUP_FITS, Constraint, Value, knob
from .indices import in_32_bits
from .tiles import group_sizes

logger = logging.getLogger(__name__)

NAME = "boxes"


#: What a block is marked with whose last axis counts the coordinates of a box.
WHOLE = "tvmflow.whole_boxes"


# -- what it computes ---------------------------------------------------------------------


def compute(shape: Sequence[Any], body: Callable[..., Any], name: str, *, whole: bool) -> te.Tensor:
    """A tensor with a number for each box, or with ``whole`` its coordinates in the last axis.

    What coordinates share should be ``let`` expressions, and what only some boxes have an
    ``if_then_else`` around it.
    """
    marks = {FAMILY: NAME, **({WHOLE: "yes"} if whole else {})}
    return te.compute(shape, body, name=name, attrs=marks)


# -- its knobs ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Shape:
    """How many boxes there are, and what is computed of each."""

    #: Samples, and boxes of each; 0 where it is known at run time.
    samples: int
    boxes: int
    outputs: int
    #: Whether an output is four coordinates a box.
    whole: bool


@dataclass(frozen=True)
class Knobs:
    """What a work-item computes."""

    boxes: int = knob("Boxes that a work-item computes, at most; on a CPU a stretch of them.")
    vector: int = knob("Boxes that a CPU computes at once, in the lanes of a vector.")
    group_size: int = knob("Work-items of a work-group.")


CONSTRAINTS = (
    Constraint(
        "vector is 1 or the width of a vector type; on a GPU 1.",
        lambda k, s, d: k.vector == 1 or (d.is_cpu and k.vector in LANES),
    ),
    GROUP_FITS,
)


def heuristic(shape: Shape, device: Device) -> Knobs:
    """A stretch that hides the start of a work-group; on GPUs one box an item."""
    if device.is_cpu:
        return Knobs(1024, max(LANES), device.group_size)
    return Knobs(1, 1, device.group_size)


def space(shape: Shape, device: Device) -> dict[str, tuple[Value, ...]]:
    """Stretches and vectors on a CPU; on GPUs a few boxes an item."""
    return {
        "boxes": (256, 1024, 4096) if device.is_cpu else (1, 2, 4),
        "vector": (1, 8, 16) if device.is_cpu else (1,),
        "group_size": group_sizes(device),
    }


# -- how it is scheduled ------------------------------------------------------------------


def match(workload: Workload) -> Shape | None:
    """The shape of a function whose anchors are this family's blocks."""
    anchors = [b for b in workload.blocks if workload.annotation(b, FAMILY) == NAME]
    if not anchors:
        return None
    whole = _whole(workload)
    extents = [axis.dom.extent for axis in workload.sch.get(anchors[0]).iter_vars]
    if whole:
        extents.pop()
    numbers = [int(e) if isinstance(e, tirx.IntImm) else 0 for e in extents]
    return Shape(prod(numbers[:-1]), numbers[-1], len(anchors), whole=whole)


def _whole(workload: Workload) -> bool:
    """Whether the last axis counts coordinates."""
    return any(workload.annotation(block, WHOLE) for block in workload.blocks)


def apply(workload: Workload, knobs: Knobs) -> s_tir.Schedule | None:
    """Inline what surrounds the anchors, and write the loops around what is left."""
    workload = Workload.of(in_32_bits(workload.sch.mod["main"]), workload.target)
    sch, whole = workload.sch, _whole(workload)
    for block in list(workload.blocks):
        if is_injective(sch, block) and sch.get_consumers(block):
            workload.inline(block)
    nests = nests_of([sch.get(block) for block in workload.blocks], whole)
    if nests is None:
        logger.debug("%s declines: a block computes more than one element an iteration", NAME)
        return None
    cleared = [unowned for nest in nests for unowned in nest.unowned()]
    nests = [nest.flattened() if nest.is_flat else nest for nest in nests]
    spread = _over_parts if workload.is_cpu else _over_items
    return with_statements(sch, [spread(workload, nest, knobs) for nest in [*nests, *cleared]])


def _over_items(workload: Workload, nest: Nest, knobs: Knobs) -> tirx.Stmt:
    """A box for each work-item of a GPU, or a few that lie far apart."""
    total = product(nest.extents)
    group = knobs.group_size

    def item(block: tirx.Var, thread: tirx.Var) -> tirx.Stmt:
        boxes = []
        for number in range(knobs.boxes):
            at = (block * knobs.boxes + number) * group + thread
            boxes.append(
                tirx.IfThenElse(at < total, box_statement(nest, unravel(at, nest.extents)), None)
            )
        return opaque(sequence(boxes))

    groups = tirx.Max(tirx.ceildiv(total, group * knobs.boxes), 1)
    return loop(
        groups,
        tirx.ForKind.THREAD_BINDING,
        lambda block: loop(
            tirx.const(group, block.ty.dtype),
            tirx.ForKind.THREAD_BINDING,
            lambda thread: item(block, thread),
            tag="threadIdx.x",
        ),
        tag="blockIdx.x",
    )


def _over_parts(workload: Workload, nest: Nest, knobs: Knobs) -> tirx.Stmt:
    """A stretch of boxes of one sample for each work-item of a CPU."""
    *_, last = nest.extents
    stretches = tirx.ceildiv(last, knobs.boxes)

    def part(number: tirx.Var) -> tirx.Stmt:
        *outer, place = unravel(number, [*nest.extents[:-1], stretches])
        begin = place * knobs.boxes
        length = tirx.Min(last - begin, knobs.boxes)
        return opaque(stretch(nest, outer, begin, length, knobs.vector))

    kind, tag = tirx.ForKind.PARALLEL, None
    if workload.target.is_gpu_kernel:
        kind, tag = tirx.ForKind.THREAD_BINDING, "blockIdx.x"
    parts = product([*nest.extents[:-1], stretches])
    if tag is not None:
        parts = tirx.Max(parts, 1)
    return loop(parts, kind, part, tag=tag)
