"""Schedule families: templates with knobs that a heuristic fills or a tuner searches.

A family is a module of this package, or a class in one, that defines the names of :class:`Family`.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from tvm import s_tir

from ..devices.target import Device
from ..runtime.json_types import JsonMapping, JsonObject
from .common import Block, Workload

logger = logging.getLogger(__name__)

#: Type of a knob's value.
Value = bool | int | str
#: Frozen dataclasses of each family: the facts that its knobs depend on, and the knobs.
FamilyShape = Any
FamilyKnobs = Any


#: Conditions on knobs, shape and device, by the sentence that states them.
Constraints = Mapping[str, Callable[[FamilyKnobs, FamilyShape, Device], bool]]

#: Constraint shared by all families whose knobs have a ``group_size``.
GROUP_FITS: Constraints = {
    "group_size is at most what the device accepts.": lambda k, s, d: (
        k.group_size <= d.max_group_size
    ),
}


#: Constraints of families that write a work-group's prefix sums or trees themselves.
GROUP_HALVES: Constraints = {
    **GROUP_FITS,
    "group_size is a power of 2, and 1 on a CPU.": lambda k, s, d: (
        k.group_size & (k.group_size - 1) == 0 and (k.group_size == 1) == d.is_cpu
    ),
}


class Declined(Exception):  # noqa: N818 (no error: another family is asked)
    """Raised with the reason by a family that does not serve a function with its block."""


def only_block(workload: Workload, family: str) -> Block:
    """Return the block that a family marked; decline if the function has any other block."""
    anchor = workload.anchor(family)
    if len(workload.blocks) > 1:
        raise Declined("the function computes something else, too")
    return anchor


class Family(Protocol):
    """Protocol of a module or class that is a family."""

    #: Its name in reports and journals.
    NAME: str
    #: Its place in the order of `match` calls: functions of custom operators and of dynamic shapes
    #: (from 100), products on CUDA (200), convolutions and pooling (300), other products (400),
    #: sums (500), data-parallel functions (600), the fallback (1000).
    ORDER: int
    #: A frozen dataclass of numbers, strings and booleans: all facts that knobs depend on.
    Shape: type[FamilyShape]
    #: A frozen dataclass of :func:`knob` fields.
    Knobs: type[FamilyKnobs]
    CONSTRAINTS: Constraints

    def match(self, workload: Workload) -> FamilyShape | None:
        """Return the shape of a function that the family serves, else ``None``.

        Like :meth:`apply`, it may raise :class:`Declined` instead, with a reason for the log, or
        :class:`.common.NoAnchor` if the function has no block of the family.
        """

    def heuristic(self, shape: FamilyShape, device: Device) -> FamilyKnobs:
        """Return knobs that meet the constraints and are good without any measurement."""

    def space(self, shape: FamilyShape, device: Device) -> dict[str, tuple[Value, ...]]:
        """Return the values of each knob worth trying; constraints thin out their product."""

    def apply(self, workload: Workload, knobs: FamilyKnobs) -> s_tir.Schedule | None:
        """Schedule the function of a fresh workload; return ``None`` if that is not possible."""


def knob(sentence: str) -> Any:
    """Declare a field of a family's ``Knobs``, with the sentence that explains it."""
    return dataclasses.field(metadata={"sentence": sentence})


def facts_of(shape: FamilyShape) -> JsonObject:
    """Return a shape as JSON for journals and modules.

    Fields with their default value are left out: a shape that was recorded before a field existed
    is still equal.
    """
    values = ((field, getattr(shape, field.name)) for field in dataclasses.fields(shape))
    return {field.name: value for field, value in values if value != field.default}


def refusal(family: Family, knobs: FamilyKnobs, shape: FamilyShape, device: Device) -> str | None:
    """Return the sentence of the first constraint that ``knobs`` violate, or ``None``."""
    return violated(family.CONSTRAINTS, knobs, shape, device)


def violated(
    constraints: Constraints, knobs: FamilyKnobs, shape: FamilyShape, device: Device
) -> str | None:
    """Return the sentence of the first of some constraints that ``knobs`` violate, or ``None``."""
    failing = (what for what, holds in constraints.items() if not holds(knobs, shape, device))
    return next(failing, None)


#: Types of knobs by the annotation of their fields, with their description in messages.
_KINDS = {
    "bool": (bool, "true or false"),
    "int": (int, "a positive number"),
    "str": (str, "a text"),
}


def read_knobs(family: Family, given: JsonMapping) -> FamilyKnobs:
    """Convert names and values, from a journal or a file, to a family's knobs.

    Raises `ValueError` for a knob that is missing, unknown or of another type, and names it.
    """
    fields = {f.name: f for f in dataclasses.fields(family.Knobs)}
    for name in given:
        if name not in fields:
            raise ValueError(f"There is no knob {name!r}; there are {', '.join(fields) or 'none'}.")
    for name, field in fields.items():
        if name not in given:
            raise ValueError(f"The knob {name!r} is missing.")
        kind, wanted = _KINDS[str(field.type)]
        if type(given[name]) is not kind or (kind is int and given[name] < 1):
            raise ValueError(f"The knob {name!r} must be {wanted}, not {given[name]!r}.")
    return family.Knobs(**given)


@dataclass(frozen=True)
class Proposal:
    """Knobs from another source than a family's heuristic."""

    #: ``given`` (by the user) or ``journal``.
    source: str
    knobs: JsonMapping
    #: The journal and record that the knobs are from, for messages.
    origin: str = ""

    def refused(self, function: str, reason: str) -> None:
        """Log that the knobs are not used: as a warning if the user gave them."""
        level = logging.WARNING if self.source == "given" else logging.INFO
        origin = f" by {self.origin}" if self.origin else ""
        logger.log(
            level, "The knobs given%s for %s %s They are not used.", origin, function, reason
        )


def accepted(
    family: Family, shape: FamilyShape, device: Device, proposal: Proposal, function: str
) -> FamilyKnobs | None:
    """Return the knobs of a proposal; log why and return ``None`` if they do not fit."""
    try:
        knobs = read_knobs(family, proposal.knobs)
        reason = refusal(family, knobs, shape, device)
    except ValueError as error:
        reason = str(error)
    if reason is None:
        return knobs
    proposal.refused(function, f"do not fit its schedule family {family.NAME}: {reason}")
    return None
