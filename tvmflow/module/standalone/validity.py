"""Whether a plan's records point to what is there: a right digest says only that nothing changed.

The runtime in the library checks that and more before it follows anything
(``native/standalone/plan.c``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from ..metadata import STANDALONE, check_interface
from ..schema import SchemaError, parse
from .format import DTYPES, HEADER, MAX_DIMENSIONS, RECORDS, Section

if TYPE_CHECKING:
    from .read import EncodedPlan

#: What a byte of a DEFLATE stream can become at most.
_INFLATE_RATIO = 1032

#: Fields that are offsets of texts.
_TEXTS = {
    Section.WEIGHTS: ("name",),
    Section.PROGRAMS: ("options",),
    Section.LAUNCHES: ("kernel", "function"),
    Section.INPUTS: ("name", "layout"),
    Section.OUTPUTS: ("name", "layout"),
}
#: Fields that are indices of another section's records.
_INDICES = {
    Section.WEIGHTS: {"allocation": Section.ALLOCATIONS},
    Section.INPUTS: {"allocation": Section.ALLOCATIONS},
    Section.OUTPUTS: {"allocation": Section.ALLOCATIONS},
    Section.TEST_OUTPUTS: {"output": Section.OUTPUTS},
}
#: Fields that are a first record of another section and how many there are.
_RANGES = {
    Section.LAUNCHES: ("first_argument", "arguments", Section.ARGUMENTS),
    Section.INPUTS: ("first_region", "regions", Section.REGIONS),
    Section.OUTPUTS: ("first_region", "regions", Section.REGIONS),
    Section.TEST_OUTPUTS: ("first_value", "count", Section.TEST_VALUES),
}


def check_plan(plan: EncodedPlan) -> None:
    """Check everything that is read of a plan in Python.

    Raises
    ------
    SchemaError
        If a section, a reference or the description is not what it has to be.
    """
    for section, (offset, count) in zip(Section, plan.header["section"].tolist(), strict=True):
        size = RECORDS[section].itemsize if section in RECORDS else 1
        if offset < HEADER.itemsize or offset + count * size > len(plan.content):
            raise SchemaError(f"the section {section.name.lower()} lies outside the plan")
    for wrong in _wrong_references(plan):
        raise SchemaError(f"a record of the section {wrong}")
    if int(plan.header["source_bytes"]) > _INFLATE_RATIO * (len(plan[Section.SOURCES]) + 1):
        raise SchemaError("its source is said to be larger than it can be")
    STANDALONE(parse(plan[Section.METADATA].rstrip(b"\0")), "")


def check_interfaces(plan: EncodedPlan) -> None:
    """Check the shapes of inputs and outputs, as `~.describe.interfaces` gives them.

    Raises
    ------
    SchemaError
        If one is too large, or does not fit the blocks that it is kept in.
    """
    from .describe import interfaces

    for section in (Section.INPUTS, Section.OUTPUTS):
        for index, tensor in enumerate(interfaces(plan, section)):
            check_interface(tensor, f"{section.name.lower()}[{index}]")


def _wrong_references(plan: EncodedPlan) -> Iterator[str]:
    strings = plan[Section.STRINGS]
    if strings and not strings.endswith(b"\0"):
        yield "strings has no end"
    try:
        strings.decode()
    except UnicodeError:
        yield "strings is not UTF-8"
    for section, fields in _TEXTS.items():
        for field in fields:
            if (plan[section][field] >= len(strings)).any():
                yield f"{section.name.lower()} has a {field} that is no text"
    if (plan[Section.EXTENSIONS] >= len(strings)).any():
        yield "extensions is no text"
    for section, targets in _INDICES.items():
        for field, target in targets.items():
            if (plan[section][field] >= len(plan[target])).any():
                yield f"{section.name.lower()} has the {field} of none"
    for section, (first, count, target) in _RANGES.items():
        records = plan[section]
        ends = records[first].astype(np.uint64) + records[count]
        if (ends > len(plan[target])).any():
            yield f"{section.name.lower()} has {count} that are not there"
    for section in (Section.INPUTS, Section.OUTPUTS):
        records = plan[section]
        if (records["dtype"] >= len(DTYPES)).any() or (records["shape"] < 0).any():
            yield f"{section.name.lower()} has no dtype or shape"
        if (records["dimensions"] > MAX_DIMENSIONS).any():
            yield f"{section.name.lower()} has too many dimensions"
    dimensions = plan[Section.LAUNCHES]["dimensions"]
    if ((dimensions < 1) | (dimensions > 3)).any():
        yield "launches has no dimensions"
