"""Import of times that standalone libraries measured on users' devices (`tvmflow_tune`).

A report names alternatives by their numbers in the library, which has their knobs.
"""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from ..errors import JournalError
from ..journal.journal import Journal
from ..journal.records import Device, Target, Trial, Workload
from ..module.standalone.format import AlternativeKind, Section
from ..module.standalone.read import EncodedPlan, find_plans
from ..runtime.json_types import JsonObject
from ..runtime.regular_files import read_text
from .importers import Imported
from .tuner import TOOLCHAIN


def import_report(
    journal: Journal, path: Path, library: str | os.PathLike[str], note: str = ""
) -> Imported:
    """Append the times of a library's report to a journal.

    Times of several calls together are left out: they belong to no knobs.

    Raises `JournalError` if the file is no report, or that of another library.
    """
    report = _read(path)
    plans = find_plans(Path(library))
    plan = next((p for p in plans if _identity(p) == report["library"]), None)
    if plan is None or not (choices := plan.metadata.get("choices")):
        raise JournalError(
            f"Importing {path} failed: it is a report of another library than {library}.",
            remedy="Name the library that was tuned, as it was compiled for the app.",
        )
    about = report["device"]
    facts = {name: about[name] for name in ("platform", "version") if about.get(name)}
    device = Device("", about["name"], about.get("driver", ""), facts)
    origin = {"file": path.name, **({"note": note} if note else {})}
    result = Imported(path)
    for knobs, task, seconds in _times(plan, report, choices):
        journal.append(
            Trial(
                *(Workload(**task["workload"]), Target(**task["target"]), device),
                *(knobs, (seconds,)),
                timestamp=time.time(),
                toolchain=TOOLCHAIN,
                source="library",
                provenance=origin,
            )
        )
        result.records += 1
    return result


def _read(path: Path) -> JsonObject:
    try:
        report = json.loads(read_text(path))
        names, device = ("library", "times"), report["device"]["name"]
        if not isinstance(device, str) or any(name not in report for name in names):
            raise ValueError
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise JournalError(
            f"Importing {path} failed: it is no report of tvmflow_tune.",
            remedy="Name a file with the text that tvmflow_tune_report gave.",
        ) from error
    return report


def _identity(plan: EncodedPlan) -> str:
    return bytes(plan.header["checksum"][:16]).hex()


def _times(
    plan: EncodedPlan, report: JsonObject, choices: JsonObject
) -> Iterator[tuple[JsonObject, JsonObject, float]]:
    """Yield knobs, the description of their function, and seconds: each once."""
    launches, alternatives = plan[Section.LAUNCHES], plan[Section.ALTERNATIVES]
    numbers: dict[int, tuple[str, int]] = {}
    count: defaultdict[int, int] = defaultdict(int)
    for number, row in enumerate(alternatives):
        if row["kind"] != AlternativeKind.CHOICE or row["calls"] != 1:
            continue
        first = int(row["first"])
        count[first] += 1
        # The usual knobs are the first.
        numbers[number] = plan.text(int(launches[first]["function"])), count[first]
    found: dict[tuple[str, int], float] = {}
    for each in report["times"]:
        name, number = numbers.get(each["alternative"], ("", 0))
        if name not in choices or each["standing"] == "wrong":
            continue
        found[name, number] = each["us"]
        if each["instead_of"] < 0:
            found[name, 0] = each["was_us"]
    for (name, number), microseconds in found.items():
        if microseconds > 0 and number < len(choices[name]["knobs"]):
            yield choices[name]["knobs"][number], choices[name], microseconds * 1e-6
