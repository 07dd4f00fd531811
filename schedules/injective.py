"""Injective operators, which move or combine elements one by one: concat, slices, padding, gather.

The family serves any function that is one data-parallel block after inlining its producers; the
operator defines the computation, or :mod:`tvmflow.graph.layout.rules.injective` for tensors in
blocks of channels.
"""

from __future__ import annotations

from collections import deque
from dataclasses import KW_ONLY, dataclass
from math import prod

from tvm import s_tir, tirx

from ..devices.target import Device, TargetSpec
from .common import FAMILY, Block, Workload, is_injective
from .data_parallel import Nest, distribute, items_for, nest_of, widest_vector
from .family import GROUP_FITS, Declined, Value, knob
from .sizes import LANES, group_sizes

NAME = "moving"
ORDER = 620


@dataclass(frozen=True)
class Shape:
    """The result's elements, and the vectors that can compute them."""

    #: Elements outside the innermost loop, and along it.
    outer: int
    inner: int
    #: The widest vector of neighbours; 1 if elements are computed one by one.
    lanes: int
    _: KW_ONLY
    #: Whether whole texels are written.
    texels: bool


@dataclass(frozen=True)
class Knobs:
    """Knobs of the vectors of a work-item."""

    vector: int = knob("Neighbouring elements that are computed and stored as one vector.")
    items: int = knob(
        "Vectors that a work-item computes: neighbours on a CPU, else far from each other."
    )
    group_size: int = knob("Most work-items of a work-group.")


CONSTRAINTS = {
    "A vector's lanes must divide the neighbours that can be computed together.": lambda k, s, d: (
        s.lanes % k.vector == 0 and k.vector in (1, *LANES)
    ),
    "A texel must be written as one vector, if vectors are possible.": lambda k, s, d: (
        not s.texels or k.vector == s.lanes
    ),
    "items are at most the vectors of the result.": lambda k, s, d: (
        k.items <= max(1, s.outer * s.inner // k.vector)
    ),
    **GROUP_FITS,
}


def heuristic(shape: Shape, device: Device) -> Knobs:
    """Return the widest vectors; on a CPU enough of them to hide the launch of a work-group."""
    vectors = shape.outer * shape.inner // shape.lanes
    return Knobs(shape.lanes, items_for(vectors, shape.lanes, device), device.group_size)


def space(shape: Shape, device: Device) -> dict[str, tuple[Value, ...]]:
    """Return narrower vectors, and work-items of several sizes."""
    items = (16, 64, 256, 1024, 4096, 16384) if device.is_cpu else (1, 2, 4, 8)
    usual = heuristic(shape, device).items
    return {
        "vector": tuple(v for v in (1, *LANES) if v <= shape.lanes),
        "items": tuple(sorted({*items, usual})),
        "group_size": group_sizes(device),
    }


def match(workload: Workload) -> Shape:
    """Return the shape of a function that becomes one data-parallel block."""
    copy, block, nest, lanes = _in_vectors(workload)
    *outer, inner = nest.extents
    return Shape(prod(outer), inner, lanes, texels=copy.writes_texture(block))


def _in_vectors(workload: Workload) -> tuple[Workload, Block, Nest, int]:
    """Return a copy of the workload that is one block, with its loops and lanes.

    It is a copy, because `apply` inlines again.  On a CPU, axes are split if only that gives
    neighbours: channels that were in blocks, and are not after a transposition, are still in runs
    as long as a block.
    """
    found = []
    for digits in (False, True) if workload.is_cpu else (False,):
        copy, block, nest = one_block(workload, digits)
        found.append((copy, block, nest, widest_vector(copy, block, nest)))
        if found[-1][-1] > 1:
            return found[-1]
    return found[0]


def one_block(workload: Workload, digits: bool = False) -> tuple[Workload, Block, Nest]:
    """Return a copy with all producers inlined, its block and its loops; decline if not possible.

    ``digits`` is passed to :func:`.data_parallel.nest_of`.
    """
    copy = Workload.of(_inlined(workload.function, workload.target), workload.target)
    (block,) = copy.blocks
    nest = nest_of(copy, block, digits)
    if nest is None or not nest.loops:
        raise Declined("no loop for each axis, or no loops")
    return copy, block, nest


#: Cache of the last functions, their targets, and the inlined functions.
_recent: deque[tuple[tirx.PrimFunc, TargetSpec, tirx.PrimFunc]] = deque(maxlen=4)


def _inlined(function: tirx.PrimFunc, target: TargetSpec) -> tirx.PrimFunc:
    """Inline all data-parallel blocks of a function into one block.

    For a chain of a hundred blocks that takes a second, and several families ask for it.
    """
    for known, its_target, result in tuple(_recent):
        if known.same_as(function) and its_target == target:
            return result
    workload = Workload.of(function, target)
    for block in workload.blocks:
        if not is_injective(workload.sch, block):
            raise Declined(f"{workload.sch.get(block).name_hint} is not data parallel")
        if (family := workload.annotation(block, FAMILY)) is not None:
            raise Declined(f"{family} declined before")
    workload.inline(*workload.blocks[:-1])
    _recent.append((function, target, workload.function))
    return workload.function


def apply(workload: Workload, knobs: Knobs) -> s_tir.Schedule:
    """Distribute the one block by ``knobs``."""
    copy, block, nest, _ = _in_vectors(workload)
    distribute(copy, block, nest, knobs.vector, knobs.items, knobs.group_size)
    return copy.sch
