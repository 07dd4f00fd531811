"""Schedule families: templates with knobs that a heuristic fills or a tuner searches.

A family is a module of this package, or a class in one, with the names that :class:`Family` lists.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from tvm import s_tir

from ..devices.target import Device
from ..runtime.json_types import JsonMapping, JsonObject
from .common import Workload

logger = logging.getLogger(__name__)

#: What a knob can be set to.
Value = bool | int | str
#: A family's own frozen dataclasses: the facts that its knobs depend on, and the knobs.
FamilyShape = Any
FamilyKnobs = Any


#: Conditions on knobs, shape and device that must hold, by the sentence that says so.
Constraints = Mapping[str, Callable[[FamilyKnobs, FamilyShape, Device], bool]]

#: Of every family whose knobs have a ``group_size``.
GROUP_FITS: Constraints = {
    "group_size is at most what the device accepts.": lambda k, s, d: (
        k.group_size <= d.max_group_size
    ),
}


class Declined(Exception):  # noqa: N818 (no error: another family is asked)
    """A family has a block in a function that it does not serve, for this reason."""


class Family(Protocol):
    """The names of a module or class that is a family."""

    #: Its name in reports and journals.
    NAME: str
    #: Its place among all, which are asked from the least to the greatest: functions of custom
    #: operators and of dynamic shapes (from 100), products on CUDA (200), convolutions and pooling
    #: (300), other products (400), sums (500), data-parallel functions (600), the fallback (1000).
    ORDER: int
    #: A frozen dataclass of numbers, texts and truth values: all that knobs depend on.
    Shape: type[FamilyShape]
    #: A frozen dataclass of :func:`knob` fields.
    Knobs: type[FamilyKnobs]
    CONSTRAINTS: Constraints

    def match(self, workload: Workload) -> FamilyShape | None:
        """Return the shape of a function that the family serves, else ``None``.

        Like :meth:`apply`, it may raise :class:`Declined` instead, with a reason for the log;
        without a block of the family, :class:`.common.NoAnchor`.
        """

    def heuristic(self, shape: FamilyShape, device: Device) -> FamilyKnobs:
        """Return knobs that meet the constraints and are good without any measurement."""

    def space(self, shape: FamilyShape, device: Device) -> dict[str, tuple[Value, ...]]:
        """Return the values worth trying of each knob; constraints thin out their product."""

    def apply(self, workload: Workload, knobs: FamilyKnobs) -> s_tir.Schedule | None:
        """Schedule the function of a fresh workload; ``None`` where it turns out not to be fit."""


def knob(sentence: str) -> Any:
    """A field of a family's ``Knobs``, with the sentence that explains it."""
    return dataclasses.field(metadata={"sentence": sentence})


def facts_of(shape: FamilyShape) -> JsonObject:
    """A shape as journals and modules keep it.

    Fields that have their default are left out: a shape that was recorded before there was such
    a field is the same one.
    """
    values = ((field, getattr(shape, field.name)) for field in dataclasses.fields(shape))
    return {field.name: value for field, value in values if value != field.default}


def refusal(family: Family, knobs: FamilyKnobs, shape: FamilyShape, device: Device) -> str | None:
    """The sentence of the first constraint that ``knobs`` violate, or ``None``."""
    return violated(family.CONSTRAINTS, knobs, shape, device)


def violated(
    constraints: Constraints, knobs: FamilyKnobs, shape: FamilyShape, device: Device
) -> str | None:
    """The same, of constraints by themselves."""
    failing = (what for what, holds in constraints.items() if not holds(knobs, shape, device))
    return next(failing, None)


def candidates(family: Family, shape: FamilyShape, device: Device) -> Iterator[FamilyKnobs]:
    """Every choice of knobs in the family's space that meets its constraints."""
    values = family.space(shape, device)
    for choice in itertools.product(*values.values()):
        knobs = family.Knobs(**dict(zip(values, choice, strict=True)))
        if refusal(family, knobs, shape, device) is None:
            yield knobs


def drawn(
    family: Family, shape: FamilyShape, device: Device, rng: random.Random
) -> Iterator[FamilyKnobs]:
    """Some of these at random, without end, where the space is too large to go through it."""
    values = family.space(shape, device)
    while True:
        knobs = family.Knobs(**{name: rng.choice(choice) for name, choice in values.items()})
        if refusal(family, knobs, shape, device) is None:
            yield knobs


#: Types of knobs by how their fields are annotated, with what messages call them.
_KINDS = {
    "bool": (bool, "true or false"),
    "int": (int, "a positive number"),
    "str": (str, "a text"),
}


def read_knobs(family: Family, given: JsonMapping) -> FamilyKnobs:
    """Make a family's knobs from names and values, as a journal or a file has them.

    Raises `ValueError` for one that is missing, unknown or of another type, and says which.
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
    """Knobs from elsewhere than a family's heuristic."""

    #: ``given`` by the user, or from a ``journal``.
    source: str
    knobs: JsonMapping
    #: Which record of which journal they are, for people.
    origin: str = ""

    def refused(self, function: str, reason: str) -> None:
        """Say that they are not used: to who gave them, and in the log else."""
        level = logging.WARNING if self.source == "given" else logging.INFO
        origin = f" by {self.origin}" if self.origin else ""
        logger.log(
            level, "The knobs given%s for %s %s They are not used.", origin, function, reason
        )


def accepted(
    family: Family, shape: FamilyShape, device: Device, proposal: Proposal, function: str
) -> FamilyKnobs | None:
    """The knobs of a proposal; ``None`` where they do not fit, which is logged."""
    try:
        knobs = read_knobs(family, proposal.knobs)
        reason = refusal(family, knobs, shape, device)
    except ValueError as error:
        reason = str(error)
    if reason is None:
        return knobs
    proposal.refused(function, f"do not fit its schedule family {family.NAME}: {reason}")
    return None
