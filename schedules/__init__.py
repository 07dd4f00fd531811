"""The schedule library: one operator family a file.

Each family states what it computes (TE, with shapes), its knobs, and how it is scheduled, in
this order; :mod:`.family` says what a family has.  :func:`schedule_function` asks the families
from the most specific to the fallback; one that does not apply declines and logs why.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

import tvm_ffi
from tvm import s_tir, tirx
from tvm.error import InternalError

from ..devices.target import TargetSpec
from ..ir.scope import CHANNELS, is_texture
from . import (
    conv2d,
    conv2d_1x1,
    conv2d_transpose,
    dense,
    depthwise,
    dynamic_shapes,
    fallback,
    gemm_simt,
    gemm_tensor,
    gemv,
    grouped,
    matmul,
    moving,
    normalization,
    pooling,
    reduction,
    resize,
    softmax,
    transpose,
    winograd_input,
    winograd_output,
    winograd_product,
)
from .blocks import launches_threads
from .boxes import masked_mean, per_box
from .common import FAMILY, Workload
from .family import Family, Proposal, accepted, facts_of
from .sharing import LOCAL_BYTES, local_bytes

logger = logging.getLogger(__name__)

#: Families in the order in which they are asked; the last one never declines.
FAMILIES: tuple[Family, ...] = cast(
    "tuple[Family, ...]",
    (
        per_box,
        dynamic_shapes,
        gemm_tensor,
        gemm_simt,
        conv2d_1x1,
        conv2d,
        depthwise,
        grouped,
        conv2d_transpose,
        winograd_input,
        winograd_product,
        winograd_output,
        pooling,
        gemv,
        dense,
        matmul,
        masked_mean,
        softmax,
        normalization,
        reduction,
        resize,
        transpose,
        moving,
        fallback,
    ),
)


#: Those of custom operators, which only functions with a block that one of them has marked ask.
OF_CUSTOM_OPERATORS = (per_box, masked_mean)

#: From a family's name and a shape to knobs that were measured for them.
Lookup = Callable[[str, dict[str, Any]], Proposal | None]


@dataclass(frozen=True)
class Scheduled:
    """A schedule, and what was chosen for it."""

    schedule: s_tir.Schedule
    family: str
    shape: dict[str, Any]
    knobs: dict[str, Any]
    #: ``heuristic``, ``given`` or ``journal``.
    source: str
    #: Of knobs from a journal: which record they are.
    origin: str = ""

    def report(self) -> dict[str, Any]:
        """All but the schedule, for a module's metadata."""
        return {
            "family": self.family,
            "shape": self.shape,
            "knobs": self.knobs,
            "source": self.source,
            **({"origin": self.origin} if self.origin else {}),
        }


def schedule_function(
    function: tirx.PrimFunc,
    target: TargetSpec,
    given: Mapping[str, Any] | None = None,
    name: str = "main",
    lookup: Lookup | None = None,
    families: Sequence[Family] = FAMILIES,
) -> Scheduled:
    """Schedule one primary function for a target.

    Parameters
    ----------
    function
        Blocks without a schedule.
    target
        Its device's facts are what the knobs depend on.
    given
        Knobs by name, instead of the heuristic's.  Those that do not fit are refused with a
        warning, and others are used: no function fails to compile for its knobs.
    name
        The function's name, for messages.
    lookup
        Knobs of a journal for a family and a shape.  Given ones come first.
    families
        Those that are asked, in their order.
    """
    workload = Workload.of(function, target)
    begun = workload.function
    marks = {workload.annotation(block, FAMILY) for block in workload.blocks}
    for family in families:
        if family in OF_CUSTOM_OPERATORS and family.NAME not in marks:
            continue
        if not workload.function.same_as(begun):
            # One that declined has inlined something.
            workload = Workload.of(function, target)
            begun = workload.function
        scheduled = _try(family, workload, function, given, name, lookup)
        if scheduled is not None:
            return scheduled
    raise AssertionError("the fallback family schedules every primary function")


def _try(
    family: Family,
    workload: Workload,
    function: tirx.PrimFunc,
    given: Mapping[str, Any] | None,
    name: str,
    lookup: Lookup | None,
) -> Scheduled | None:
    target = workload.target
    shape = _match(family, workload, name)
    if shape is None:
        return None
    known = facts_of(shape)
    proposals = [] if given is None else [Proposal("given", given)]
    if lookup is not None and (found := lookup(family.NAME, known)) is not None:
        proposals.append(found)
    for proposal in proposals:
        knobs = accepted(family, shape, target.device, proposal, name)
        if knobs is None:
            continue
        schedule = _apply(family, function, target, knobs, name)
        if schedule is not None:
            report = (known, asdict(knobs), proposal.source, proposal.origin)
            return Scheduled(schedule, family.NAME, *report)
        proposal.refused(name, f"do not lead to a schedule of {family.NAME}.")
    knobs = family.heuristic(shape, target.device)
    schedule = _apply(family, function, target, knobs, name)
    if schedule is None:
        return None
    return Scheduled(schedule, family.NAME, known, asdict(knobs), "heuristic")


def _match(family: Family, workload: Workload, name: str) -> Any:
    try:
        shape = family.match(workload)
    except s_tir.ScheduleError as error:
        # It inlines what it reads, which in a function of several results may be one of them.
        logger.debug("%s: %s declines: %s", name, family.NAME, str(error).splitlines()[-1])
        return None
    if shape is None and workload.anchor(family.NAME) is not None:
        # The reason is the family's to log; nothing falls through without a line.
        logger.debug("%s: %s declines, although its block is there", name, family.NAME)
    return shape


def _apply(
    family: Family, function: tirx.PrimFunc, target: TargetSpec, knobs: Any, name: str
) -> s_tir.Schedule | None:
    """The schedule of a fresh workload, where it runs on the device."""
    workload = Workload.of(function, target)
    family.match(workload)
    try:
        schedule = family.apply(workload, knobs)
    except (s_tir.ScheduleError, InternalError) as error:
        logger.debug("%s: %s failed: %s", name, family.NAME, str(error).splitlines()[-1])
        return None
    if schedule is None or not _runs_on_device(schedule, target) or not _fits(schedule, name):
        return None
    if (loop := _open_loop(schedule)) is not None:
        logger.debug("%s: %s declines: the loop %s has no fixed extent", name, family.NAME, loop)
        return None
    if (image := _parted_texel(schedule)) is not None:
        logger.debug("%s: %s declines: it stores parts of texels of %s", name, family.NAME, image)
        return None
    return schedule


def _open_loop(schedule: s_tir.Schedule) -> str | None:
    """A loop to be unrolled or vectorised whose extent is computed, for which there is no code.

    It is there where a tile reads parts of a tensor that are not the same for all tiles.
    """
    found: list[str] = []

    def visit(loop: tirx.For) -> None:
        written_out = loop.kind in (tirx.ForKind.UNROLLED, tirx.ForKind.VECTORIZED)
        if written_out and not isinstance(loop.extent, tirx.IntImm):
            found.append(str(loop.loop_var.name))

    tvm_ffi.structural_walk(schedule.mod["main"].body, (tirx.For, visit))
    return found[0] if found else None


def _parted_texel(schedule: s_tir.Schedule) -> str | None:
    """A texture that is not written by loops over the channels of a texel, in one work-item."""
    written: dict[str, int] = {}
    whole: dict[str, int] = {}

    def count(found: dict[str, int], block: s_tir.SBlock) -> None:
        if isinstance(block.body, tirx.BufferStore) and is_texture(block.body.buffer.scope()):
            name = str(block.body.buffer.name)
            found[name] = found.get(name, 0) + 1

    def loop(node: tirx.For) -> None:
        serial = node.kind != tirx.ForKind.THREAD_BINDING and isinstance(node.extent, tirx.IntImm)
        if serial and isinstance(node.body, s_tir.SBlockRealize) and int(node.extent) == CHANNELS:
            count(whole, node.body.block)

    body = schedule.mod["main"].body
    tvm_ffi.structural_walk(body, (tirx.For, loop))
    tvm_ffi.structural_walk(body, (s_tir.SBlock, lambda block: count(written, block)))
    return next((name for name, times in written.items() if whole.get(name, 0) != times), None)


def _fits(schedule: s_tir.Schedule, name: str) -> bool:
    """Whether a schedule's local memory is what every OpenCL device has."""
    used = local_bytes(schedule)
    if used > LOCAL_BYTES:
        logger.debug("%s would need %d bytes of local memory, over %d", name, used, LOCAL_BYTES)
    return used <= LOCAL_BYTES


def _runs_on_device(schedule: s_tir.Schedule, target: TargetSpec) -> bool:
    """Whether no block is left to the host, which cannot read the device's memory."""
    if not target.is_gpu_kernel:
        return True
    root = schedule.get_sblock("root", func_name="main")
    left = [b for b in schedule.get_child_blocks(root) if not launches_threads(schedule, b)]
    if left:
        names = ", ".join(str(schedule.get(block).name_hint) for block in left)
        logger.debug("a schedule left %s to the host", names)
    return not left


__all__ = ["FAMILIES", "Lookup", "Proposal", "Scheduled", "schedule_function"]
