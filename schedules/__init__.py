"""The schedule library, with one operator family in each file.

Each family states what it computes (TE, with shapes), its knobs, and how it is scheduled, in
this order; :mod:`.family` defines the protocol.  :func:`schedule_function` tries the families
from the most specific to the fallback; one that does not apply declines and logs why.

Families register by presence: each module of this folder, or of a package in it, that has an
``ORDER`` is one, and one that holds several lists them as its ``FAMILIES``.
"""

from __future__ import annotations

import logging
import pkgutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module

from tvm import s_tir, tirx
from tvm.error import InternalError

from ..devices.target import TargetSpec
from ..ir.expressions import nodes_in
from ..ir.half_sums import with_free_registers
from ..ir.scope import CHANNELS, is_texture
from ..runtime.json_types import JsonMapping, JsonObject
from .boxes import masked_mean, per_box
from .common import FAMILY, NoAnchor, Workload, launches_threads, local_bytes
from .family import Declined, Family, FamilyKnobs, FamilyShape, Proposal, accepted, facts_of
from .sizes import LOCAL_BYTES

logger = logging.getLogger(__name__)


def _families() -> Iterator[Family]:
    for module in pkgutil.walk_packages(__path__, f"{__name__}."):
        found = import_module(module.name)
        yield from getattr(found, "FAMILIES", [found] if hasattr(found, "ORDER") else [])


#: Families in the order in which they are tried; the last one never declines.
FAMILIES: tuple[Family, ...] = tuple(sorted(_families(), key=lambda family: family.ORDER))

#: Families of custom operators, which are tried only for functions with a block that they marked.
CUSTOM_OPERATORS = (per_box, masked_mean)

#: Function from a family's name and a shape to measured knobs for them.
Lookup = Callable[[str, JsonObject], Proposal | None]


@dataclass(frozen=True)
class Scheduled:
    """A schedule, and the family and knobs that were chosen for it."""

    schedule: s_tir.Schedule
    family: str
    shape: JsonObject
    knobs: JsonObject
    #: ``heuristic``, ``given`` or ``journal``.
    source: str
    #: The record that knobs from a journal are from.
    origin: str = ""

    def report(self) -> JsonObject:
        """Return all but the schedule, for a module's metadata."""
        names = ("family", "shape", "knobs", "source", *(["origin"] if self.origin else []))
        return {name: getattr(self, name) for name in names}


def schedule_function(
    function: tirx.PrimFunc,
    target: TargetSpec,
    given: JsonMapping | None = None,
    name: str = "main",
    lookup: Lookup | None = None,
    families: Sequence[Family] = FAMILIES,
) -> Scheduled:
    """Schedule one primary function, whose blocks have no schedule yet, for a target.

    Parameters
    ----------
    given
        Knobs by name, instead of the heuristic's.  If they do not fit, a warning is logged and
        others are used: no function fails to compile because of its knobs.
    name
        The function's name, for messages.
    lookup
        Knobs of a journal for a family and a shape.  ``given`` ones take precedence.
    families
        The families to try, in their order.
    """
    workload = Workload.of(function, target)
    begun = workload.function
    marks = {workload.annotation(block, FAMILY) for block in workload.blocks}
    for family in families:
        if family in CUSTOM_OPERATORS and family.NAME not in marks:
            continue
        if not workload.function.same_as(begun):
            # A family that declined has inlined blocks.
            workload = Workload.of(function, target)
            begun = workload.function
        shape = _match(family, workload, name)
        if shape is None:
            continue
        known = facts_of(shape)
        proposals = [] if given is None else [Proposal("given", given)]
        if lookup is not None and (found := lookup(family.NAME, known)) is not None:
            proposals.append(found)
        for proposal in proposals:
            knobs = accepted(family, shape, target.device, proposal, name)
            if knobs is None:
                continue
            if (schedule := _apply(family, function, target, knobs, name)) is not None:
                chosen = family.NAME, known, asdict(knobs), proposal.source, proposal.origin
                return Scheduled(schedule, *chosen)
            proposal.refused(name, f"do not lead to a schedule of {family.NAME}.")
        knobs = family.heuristic(shape, with_free_registers(target.device, function))
        if (schedule := _apply(family, function, target, knobs, name)) is not None:
            return Scheduled(schedule, family.NAME, known, asdict(knobs), "heuristic")
    raise AssertionError("the fallback family schedules every primary function")


def _match(family: Family, workload: Workload, name: str) -> FamilyShape | None:
    try:
        return family.match(workload)
    except NoAnchor:
        return None
    except (s_tir.ScheduleError, Declined) as error:
        # A family inlines producers, one of which may be a result of the function.
        logger.debug("%s: %s declines: %s", name, family.NAME, str(error).splitlines()[-1])
        return None


def _apply(
    family: Family, function: tirx.PrimFunc, target: TargetSpec, knobs: FamilyKnobs, name: str
) -> s_tir.Schedule | None:
    """Schedule a fresh workload; return ``None`` unless the schedule can run on the device."""
    workload = Workload.of(function, target)
    try:
        family.match(workload)
        schedule = family.apply(workload, knobs)
        if schedule is not None:
            _check(schedule, target)
    except (s_tir.ScheduleError, InternalError, Declined) as error:
        logger.debug("%s: %s failed: %s", name, family.NAME, str(error).splitlines()[-1])
        return None
    return schedule


def _check(schedule: s_tir.Schedule, target: TargetSpec) -> None:
    """Raise :class:`Declined` if a schedule cannot run on a device."""
    root = schedule.get_sblock("root", func_name="main")
    left = [b for b in schedule.get_child_blocks(root) if not launches_threads(schedule, b)]
    if target.is_gpu_kernel and left:
        # The host cannot read the device's memory.
        names = ", ".join(str(schedule.get(block).name_hint) for block in left)
        raise Declined(f"it leaves {names} to the host")
    # Only the local memory that every OpenCL device has is used.
    if (used := local_bytes(schedule)) > LOCAL_BYTES:
        raise Declined(f"it would need {used} bytes of local memory, over {LOCAL_BYTES}")
    # A loop has a computed extent if tiles read parts of a tensor that differ in size: such a
    # loop can be neither unrolled nor vectorised.
    for loop in nodes_in(schedule.mod["main"].body, tirx.For):
        unrolled = loop.kind in (tirx.ForKind.UNROLLED, tirx.ForKind.VECTORIZED)
        if unrolled and not isinstance(loop.extent, tirx.IntImm):
            raise Declined(f"the loop {loop.loop_var.name} has no fixed extent")
    if (image := _partial_texel_store(schedule)) is not None:
        raise Declined(f"it stores partial texels of {image}")


def _partial_texel_store(schedule: s_tir.Schedule) -> str | None:
    """Return a texture that is not written by loops over a texel's channels, in one work-item."""
    body = schedule.mod["main"].body
    written = _textures_written(nodes_in(body, s_tir.SBlock))
    whole = _textures_written(
        loop.body.block
        for loop in nodes_in(body, tirx.For)
        if isinstance(loop.body, s_tir.SBlockRealize)
        and loop.kind != tirx.ForKind.THREAD_BINDING
        and isinstance(loop.extent, tirx.IntImm)
        and int(loop.extent) == CHANNELS
    )
    return next((name for name, times in written.items() if whole[name] != times), None)


def _textures_written(blocks: Iterable[s_tir.SBlock]) -> Counter[str]:
    stores = (block.body for block in blocks if isinstance(block.body, tirx.BufferStore))
    return Counter(str(s.buffer.name) for s in stores if is_texture(s.buffer.scope()))


__all__ = ["FAMILIES", "Lookup", "Proposal", "Scheduled", "schedule_function"]
