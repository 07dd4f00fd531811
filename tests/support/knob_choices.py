"""Choices of knobs in a family's space that meet its constraints."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

from tvmflow.devices.target import Device
from tvmflow.schedules.family import Family, FamilyKnobs, FamilyShape, refusal


def candidates(family: Family, shape: FamilyShape, device: Device) -> Iterator[FamilyKnobs]:
    """Iterate over the choices of knobs in the family's space that meet its constraints."""
    values = family.space(shape, device)
    for choice in itertools.product(*values.values()):
        knobs = family.Knobs(**dict(zip(values, choice, strict=True)))
        if refusal(family, knobs, shape, device) is None:
            yield knobs


def sample_knobs(
    family: Family, shape: FamilyShape, device: Device, rng: random.Random
) -> Iterator[FamilyKnobs]:
    """Sample such knobs without end, for a space that is too large to enumerate."""
    values = family.space(shape, device)
    while True:
        knobs = family.Knobs(**{name: rng.choice(choice) for name, choice in values.items()})
        if refusal(family, knobs, shape, device) is None:
            yield knobs
