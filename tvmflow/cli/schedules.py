"""``tvmflow schedules``: the schedule families, their knobs and what binds them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from .formats import print_section, table
from .options import Debug, Json, Quiet, Verbose
from .session import command, out_console, print_json

EXAMPLES = """
[bold]Examples[/bold]
  tvmflow schedules
  tvmflow inspect net.so --schedules
      which family and which knobs each primary function of a module has
"""


@command
def list_families(
    as_json: Json = False,
    _verbose: Verbose = False,
    _quiet: Quiet = False,
    _debug: Debug = False,
) -> None:
    """List the schedule families in the order in which they are asked, with their knobs."""
    from ..schedules import FAMILIES

    described = [_describe(family) for family in FAMILIES]
    if as_json:
        print_json(described)
        return
    for family in described:
        title = f"{family['name']}: {family['summary']}"
        rows = [(k["name"], k["type"], k["meaning"]) for k in family["knobs"]]
        content = table(["knob", "type", "meaning"], rows)
        if not rows:
            content = table(["nothing to choose"], [])
        print_section(out_console(), title, content)
        for sentence in family["constraints"]:
            out_console().print(f"  - {sentence}", highlight=False, markup=False)


def _describe(family: Any) -> dict[str, Any]:
    fields = dataclasses.fields(family.Knobs)
    return {
        "name": family.NAME,
        "summary": (family.__doc__ or "").partition("\n\n")[0].replace("\n", " ").replace("``", ""),
        "knobs": [
            {"name": f.name, "type": f.type, "meaning": f.metadata["sentence"]} for f in fields
        ],
        "constraints": [constraint.sentence for constraint in family.CONSTRAINTS],
    }


def print_algorithms(console: Console, choices: Sequence[Mapping[str, Any]]) -> None:
    """Print how each convolution is computed, and why."""
    rows = [(c["convolution"], c["algorithm"], c["reason"]) for c in choices]
    if rows:
        columns = ["convolution", "algorithm", "why"]
        print_section(console, "Algorithms", table(columns, rows))


def print_schedules(console: Console, schedules: Mapping[str, Mapping[str, Any]]) -> None:
    """Print the family and the knobs of every primary function of a module."""
    rows = [
        (name, choice["family"], _values(choice["knobs"]), _source(choice))
        for name, choice in schedules.items()
    ]
    columns = ["primary function", "family", "knobs", "from"]
    print_section(console, "Schedules", table(columns, rows))


def _source(choice: Mapping[str, Any]) -> str:
    origin = choice.get("origin")
    return f"{choice['source']} ({origin})" if origin else choice["source"]


def _values(knobs: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={_value(value)}" for name, value in knobs.items()) or "-"


def _value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
