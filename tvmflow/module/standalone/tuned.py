"""Results of tuning a library on the device that runs it."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass

from ...errors import InputError
from ...runtime.json_types import JsonMapping
from ..files import write_file


@dataclass(frozen=True)
class Tuned:
    """Times of a library's choices, and which of them are used."""

    report: JsonMapping  #: The library's report (docs/standalone.md).

    @property
    def used(self) -> int:
        """Return the number of choices that are in use."""
        return int(self.report.get("used", 0))

    @property
    def is_complete(self) -> bool:
        """Return whether nothing is left to time."""
        return self.report.get("end") == "tuned"

    def summary(self) -> str:
        """Return a sentence about the result."""
        times, left = self.report["times"], self.report["untried"]
        text = f"Tuning: {len(times)} of {self.report['choices']} choices were timed in "
        text += f"{self.report['ms']:.0f} ms, {self.used} are used"
        if wrong := sum(time["standing"] == "wrong" for time in times):
            text += f", {wrong} were wrong"
        before, after = (each * 1e-3 for each in self.report["network_us"])
        if after:
            text += f"; a run took {before:.3g} ms, and takes {after:.3g} ms"
        return f"{text}; {left} are left." if left else f"{text}."

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the report, which ``tvmflow journal import --library`` reads."""
        write_file(path, json.dumps(self.report).encode() + b"\n")


def check_budget(budget_ms: int) -> None:
    """Raise `InputError` if a tuning cannot have this budget."""
    if not 0 < budget_ms < 1 << 32:
        raise InputError(
            f"Tuning got budget_ms={budget_ms}, expected a number from 1 to {(1 << 32) - 1}.",
            remedy="Use `budget_ms=1000`.",
        )
