"""The rules for tiles and work-groups of convolutions against what was measured on phones.

AutoTVM's logs of two phones (the journals ``adreno660`` and ``adreno740``) have the best trial of
134 convolutions.  For each log the numbers of the rules (:class:`tvmflow.devices.presets.Tiling`)
are fitted to the other logs, and judged on it: the ratio of the heuristic's register tile, items
along channels, and items of a group to those that were measured.  The last rows are the preset's.

    python benchmarks/tile_rules.py
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

from common import report, write_json

from tvmflow.devices.target import PRESETS, Tiling
from tvmflow.journal.journal import Journal
from tvmflow.schedules import conv2d, conv2d_1x1, depthwise
from tvmflow.tuning_logs import find_journal

FAMILIES: dict[str, Any] = {f.NAME: f for f in (conv2d, conv2d_1x1, depthwise)}
ADRENO = PRESETS["adreno"]
KINDS = ("convolution", "depthwise")
#: What is tried of each number: few values, as few records would choose among many by chance.
VECTORS, CHANNELS, ITEMS = (2, 4, 6, 8), (8, 16, 32), (64, 112, 256)


@dataclass(frozen=True)
class Record:
    """A convolution, and what was measured for it."""

    log: str
    family: str
    shape: Any
    #: Vectors of the register tile, items along channels, and items of the group.
    measured: tuple[int, int, int]

    @property
    def kind(self) -> str:
        """Whose numbers the rules take."""
        return "depthwise" if self.family == depthwise.NAME else "convolution"

    def ratios(self, tiling: Tiling) -> list[float]:
        """What the heuristic chooses with these numbers, by what was measured."""
        device = replace(ADRENO, **{self.kind: tiling})
        chosen = sizes(FAMILIES[self.family].heuristic(self.shape, device))
        return [ours / theirs for ours, theirs in zip(chosen, self.measured, strict=True)]


def sizes(knobs: Any) -> tuple[int, int, int]:
    """Vectors of the tile, items along channels, and items of the group."""
    return (
        knobs.tile_o * knobs.tile_h * knobs.tile_w,
        knobs.group_o,
        prod(knobs.group) * getattr(knobs, "split_i", 1),
    )


def records() -> list[Record]:
    """Those of both journals."""
    found = []
    for name in ("adreno660", "adreno740"):
        with Journal.open(find_journal(Path(name))) as journal:
            for trial in journal.trials():
                family = FAMILIES.get(trial.workload.family)
                if family is not None:
                    shape, knobs = family.Shape(**trial.workload.shape), family.Knobs(**trial.knobs)
                    log = f"{name}: {trial.provenance['file']}"
                    found.append(Record(log, trial.workload.family, shape, sizes(knobs)))
    return found


def within(ratios: Sequence[float]) -> bool:
    """True if all are within a factor of two."""
    return all(0.5 <= ratio <= 2 for ratio in ratios)


def fit(kind: str, known: Sequence[Record]) -> Tiling:
    """The numbers by which most records are met."""
    own = [record for record in known if record.kind == kind]
    tilings = [
        replace(getattr(ADRENO, kind), vectors=vectors, channels=channels, items=items)
        for vectors, channels, items in product(VECTORS, CHANNELS, ITEMS)
    ]
    return max(tilings, key=lambda t: sum(within(record.ratios(t)) for record in own))


def judge(what: str, tilings: dict[str, Tiling], judged: Sequence[Record]) -> dict[str, Any]:
    """A row of the table."""
    ratios = [record.ratios(tilings[record.kind]) for record in judged]
    tile, channels, group = (round(statistics.median(r), 2) for r in zip(*ratios, strict=True))
    numbers = {
        kind: f"{t.vectors} vectors, {t.channels} channels, {t.items} items"
        for kind, t in tilings.items()
    }
    return {
        "judged on": what,
        "records": len(judged),
        "tile": tile,
        "channels": channels,
        "group": group,
        "within 2": round(sum(map(within, ratios)) / len(judged), 3),
        **numbers,
    }


def main() -> None:
    """Fit, judge, print and write."""
    known = records()
    rows, met = [], 0.0
    for log in sorted({record.log for record in known}):
        others = [record for record in known if record.log != log]
        own = [record for record in known if record.log == log]
        tilings = {kind: fit(kind, others) for kind in KINDS}
        rows.append(judge(log, tilings, own))
        met += rows[-1]["within 2"] * len(own)
    left_out = round(met / len(known), 3)
    preset = {"convolution": ADRENO.convolution, "depthwise": ADRENO.depthwise}
    groups = {kind: [r for r in known if r.kind == kind] for kind in KINDS} | {"all": known}
    rows += [judge(f"preset, {what}", preset, group) for what, group in groups.items()]
    title = "Ours by what was measured: medians, and all three within a factor of 2"
    report(title, list(rows[0]), [list(row.values()) for row in rows])
    print(f"Left out: {left_out:.1%} of {len(known)} records are within a factor of 2.")
    write_json("tile_rules", {"left_out_within_2": left_out, "rows": rows})


if __name__ == "__main__":
    main()
