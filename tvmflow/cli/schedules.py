"""``tvmflow schedules``: the schedule families, their knobs and what binds them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from .options import Json
from .output import out_console, print_json, print_table
from .session import command

if TYPE_CHECKING:
    from ..runtime.json_types import JsonObject
    from ..schedules.family import Family

EXAMPLES = """
[bold]Examples[/bold]
  tvmflow schedules
  tvmflow inspect net.so --schedules
      which family and which knobs each primary function of a module has
"""


@command
def list_families(as_json: Json = False) -> None:
    """List the schedule families in the order in which they are asked, with their knobs."""
    from ..schedules import FAMILIES

    described = [_describe(family) for family in FAMILIES]
    if as_json:
        print_json(described)
        return
    for family in described:
        rows = [(k["name"], k["type"], k["meaning"]) for k in family["knobs"]]
        columns = ["knob", "type", "meaning"] if rows else ["nothing to choose"]
        print_table(f"{family['name']}: {family['summary']}", columns, rows)
        for sentence in family["constraints"]:
            out_console().print(f"  - {sentence}", highlight=False, markup=False)


def _describe(family: Family) -> JsonObject:
    summary = (family.__doc__ or "").partition("\n\n")[0]
    return {
        "name": family.NAME,
        "summary": summary.replace("\n", " ").replace("``", ""),
        "knobs": [
            {"name": f.name, "type": f.type, "meaning": f.metadata["sentence"]}
            for f in dataclasses.fields(family.Knobs)
        ],
        "constraints": list(family.CONSTRAINTS),
    }
