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
from functools import partial
from math import prod
from typing import Any

from tvm import s_tir, te, tirx

from ..devices.target import Device
from .box_code import Expr
from .box_items import box_statement, unowned_rows
from .box_loops import loop, opaque, product, unravel, with_statements
from .box_nests import Nest, nests_of
from .box_vectors import stretch
from .common import FAMILY, LANES, Workload, group_sizes, is_injective
from .family import GROUP_FITS, Constraint, Value, knob
from .statements import sequence

logger = logging.getLogger(__name__)

NAME = "boxes"
ORDER = 100


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
        "boxes": (128, 256, 512, 1024, 2048, 4096, 8192) if device.is_cpu else (1, 2, 3, 4, 6, 8),
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
    sch, whole = workload.sch, _whole(workload)
    for block in list(workload.blocks):
        if is_injective(sch, block) and sch.get_consumers(block):
            workload.inline(block)
    nests = nests_of([sch.get(block) for block in workload.blocks], whole)
    if nests is None:
        logger.debug("%s declines: a block computes more than one element an iteration", NAME)
        return None
    others = [
        unowned_rows(nest, out) for nest in nests for out in nest.outputs if out.row is not None
    ]
    nests = [nest.flattened() if nest.is_flat else nest for nest in nests]
    if workload.is_cpu:
        statements = [_over_stretches(workload, nest, knobs) for nest in nests]
        statements += [
            _over_parts(workload, extent, knobs.boxes, statement) for extent, statement in others
        ]
    else:
        statements = [
            _over_items(product(nest.extents), knobs, partial(_box_at, nest)) for nest in nests
        ]
        statements += [_over_items(extent, knobs, statement) for extent, statement in others]
    return with_statements(sch, statements)


def _box_at(nest: Nest, place: Expr) -> tirx.Stmt:
    return box_statement(nest, unravel(place, nest.extents))


def _over_items(total: Expr, knobs: Knobs, statement: Callable[[Expr], tirx.Stmt]) -> tirx.Stmt:
    """A place for each work-item of a GPU, or a few that lie far apart."""
    group = knobs.group_size

    def item(block: tirx.Var, thread: tirx.Var) -> tirx.Stmt:
        places = [(block * knobs.boxes + number) * group + thread for number in range(knobs.boxes)]
        return opaque(sequence([tirx.IfThenElse(at < total, statement(at), None) for at in places]))

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


def _over_stretches(workload: Workload, nest: Nest, knobs: Knobs) -> tirx.Stmt:
    """A stretch of boxes of one sample for each work-item of a CPU."""
    *outer, last = nest.extents
    stretches = tirx.ceildiv(last, knobs.boxes)

    def part(number: Expr) -> tirx.Stmt:
        *sample, place = unravel(number, [*outer, stretches])
        begin = place * knobs.boxes
        length = tirx.Min(last - begin, knobs.boxes)
        return stretch(nest, sample, begin, length, knobs.vector)

    return _parallel(workload, product([*outer, stretches]), part)


def _over_parts(
    workload: Workload, total: Expr, size: int, statement: Callable[[Expr], tirx.Stmt]
) -> tirx.Stmt:
    """A stretch of places for each work-item of a CPU."""

    def part(number: Expr) -> tirx.Stmt:
        begin = number * size
        length = tirx.Min(total - begin, size)
        return loop(length, tirx.ForKind.SERIAL, lambda i: statement(begin + i))

    return _parallel(workload, tirx.ceildiv(total, size), part)


def _parallel(workload: Workload, parts: Expr, part: Callable[[Expr], tirx.Stmt]) -> tirx.Stmt:
    """Parts for threads of the host, or work-groups of an OpenCL device that is a CPU."""
    if not workload.target.is_gpu_kernel:
        return loop(parts, tirx.ForKind.PARALLEL, lambda number: opaque(part(number)))
    return loop(
        tirx.Max(parts, 1),
        tirx.ForKind.THREAD_BINDING,
        lambda number: opaque(part(number)),
        tag="blockIdx.x",
    )
