"""What a person sees of tuning: a live table, and what came of it."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .formats import ms_text, table
from .session import err_console, note, out_console, state

if TYPE_CHECKING:
    from rich.table import Table

    from ..tuning.measure import Standing
    from ..tuning.session import Tuned
    from ..tuning.tuner import Progress, Watch


@contextmanager
def watching(trials: int, seconds: float | None) -> Iterator[Watch | None]:
    """Show a live table where a person watches."""
    console = err_console()
    if state.quiet or not console.is_terminal:
        yield None
        return
    from rich.live import Live
    from rich.text import Text

    began = time.monotonic()
    with Live(console=console, refresh_per_second=4, transient=True) as live:

        def watch(progress: Sequence[Progress], devices: Sequence[Standing]) -> None:
            lines = [*map(_standing, devices)]
            content = progress_table(progress, max(3, console.height - 5 - len(lines)))
            spent = time.monotonic() - began
            done = sum(p.trials for p in progress)
            whole = sum(trials if p.task.is_tunable else 1 for p in progress)
            left = spent / max(done, 1) * max(0, whole - done)
            if seconds is not None:
                left = min(left, max(0.0, seconds - spent))
            lines.append(
                f"{done} of at most {whole} trials, {done / spent:.1f} a second, "
                f"about {left:.0f} s left; Ctrl-C stops, the same command goes on"
            )
            # Not as a text with markup: brackets may be in it.
            content.caption = Text("\n".join(lines))
            live.update(content)

        yield watch


def _standing(device: Standing) -> str:
    """A device of a farm in a line."""
    aside = f"; set aside: {device.aside}" if device.aside else ""
    return f"{device.device}: {device.trials} trials{aside}"


def progress_table(progress: Sequence[Progress], most: int | None = None) -> Table:
    """The tasks that take most of the network's time, or all."""
    known = [p for p in progress if math.isfinite(p.best)]
    total = sum(p.time for p in known)
    rows = [
        (
            *(p.task.name, p.task.family.NAME, f"{p.trials}", f"{p.failures}"),
            *(f"{p.heuristic * 1e6:.1f}", f"{p.best * 1e6:.1f}"),
            *(f"{p.speedup:.2f}", f"{p.time / total:.1%}"),
        )
        for p in sorted(known, key=lambda p: -p.time)
    ]
    columns = [
        *("task", "family", ">trials", ">failed", ">heuristic, µs", ">best, µs"),
        *(">speed-up", ">share"),
    ]
    return table(columns, rows[:most])


def describe(tuned: Tuned) -> dict[str, Any]:
    """What a session found, for ``--json``."""
    comparison = tuned.comparison
    return {
        "seconds": tuned.seconds,
        "trials": sum(p.trials for p in tuned.progress),
        "before_ms": comparison.before_ms if comparison else None,
        "after_ms": comparison.after_ms if comparison else None,
        "is_slower": comparison.is_slower if comparison else None,
        "settled": [
            {
                "what": s.what,
                "names": list(s.names),
                "cost_model": s.default,
                "choice": s.choice,
                "costs_s": {o: c if math.isfinite(c) else None for o, c in s.costs.items()},
            }
            for s in tuned.settled
        ],
        "devices": [asdict(device) for device in tuned.devices],
        "tasks": [
            {
                "functions": list(p.task.names),
                "family": p.task.family.NAME,
                "calls": p.task.calls,
                "trials": p.trials,
                "failures": p.failures,
                "heuristic_s": p.heuristic if math.isfinite(p.heuristic) else None,
                "best_s": p.best if math.isfinite(p.best) else None,
                "knobs": p.best_knobs,
            }
            for p in tuned.progress
        ],
    }


def summarize(tuned: Tuned, journal: Path) -> None:
    """Print what a session found."""
    out_console().print(progress_table(tuned.progress))
    if tuned.settled:
        columns = ["decision", "of", "cost model", "measured", "cost"]
        out_console().print(table(columns, [s.row for s in tuned.settled]))
    trials = sum(p.trials for p in tuned.progress)
    note(("Tuned", "green"), f" in {tuned.seconds:.0f} s; {journal} has {trials} trials of it")
    for device in tuned.devices:
        note(("Device", "yellow" if device.aside else "green"), f" {_standing(device)}")
    if tuned.comparison is not None:
        before, after = tuned.comparison.before_ms, tuned.comparison.after_ms
        ratio = f"{before / after:.2f} times as fast"
        note(("Network", "green"), f" before {ms_text(before)}, after {ms_text(after)}: {ratio}")
