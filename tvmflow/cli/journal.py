"""``tvmflow journal``: what tuning journals hold, and their care."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .formats import bytes_text, ms_text, print_section, table
from .options import Debug, Json, Quiet, Verbose
from .session import command, note, out_console, print_json

if TYPE_CHECKING:
    from ..journal.journal import Journal
    from ..journal.records import Trial, Workload
    from ..journal.store import Entry

app = typer.Typer(
    help="List, check, merge, import and export tuning journals.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

_EXAMPLES = """
[bold]Examples[/bold]
  tvmflow journal ls adreno740
  tvmflow journal best pixel8.journal
  tvmflow journal merge all.journal pixel8.journal oneplus.journal
  tvmflow journal import autotvm.log --journal adreno.journal --device-name "Adreno 660"
  tvmflow journal export pixel8.journal --format json -o pixel8.jsonl
"""

File = Annotated[
    Path,
    typer.Argument(metavar="FILE", help="A journal, or the name of one that ships with tvmflow."),
]


def open_journal(path: Path) -> Journal:
    """Open a journal to read it, also one that ships with tvmflow, by its name."""
    from ..journal.journal import Journal
    from ..tuning_logs import find_journal

    return Journal.open(find_journal(path))


def report_damage(journal: Journal) -> None:
    """Print what of a journal could not be read so far."""
    for damage in journal.damage:
        note(("Damaged: ", "bold yellow"), f"{journal.path}: {damage}")
    if journal.tail is not None:
        note(("Incomplete: ", "bold yellow"), f"{journal.path}: {journal.tail}")


@app.command("ls", epilog=_EXAMPLES)
@command
def list_journals(
    files: Annotated[list[Path], typer.Argument(metavar="FILE…", help="Journals.")],
    as_json: Json = False,
    _verbose: Verbose = False,
    _quiet: Quiet = False,
    _debug: Debug = False,
) -> None:
    """List the workloads of journals, with how many trials they have and the best of them."""
    described = []
    for path in files:
        with open_journal(path) as journal:
            known = [(e, journal.store.workload(e.workload)) for e in journal.entries()]
            entries = [_described_entry(e, w) for e, w in known if w is not None]
            size = journal.path.stat().st_size
            total = sum(entry["trials"] for entry in entries)
            described.append({"journal": str(journal.path), "bytes": size, "workloads": entries})
            if not as_json:
                title = f"{journal.path}: {total} trials, {bytes_text(size)}"
                print_section(out_console(), title, _workloads(entries))
            report_damage(journal)
    if as_json:
        print_json(described)


def _described_entry(entry: Entry, workload: Workload) -> dict[str, Any]:
    return {
        "workload": entry.workload.hex(),
        "family": workload.family,
        "dtype": workload.dtype,
        "storage": workload.storage,
        "shape": dict(workload.shape),
        "best_ms": entry.cost * 1e3 if entry.cost < float("inf") else None,
        "trials": entry.trials,
        "failures": entry.failures,
    }


def _workloads(entries: list[dict[str, Any]]) -> Any:
    rows = [
        (
            entry["workload"][:12],
            entry["family"],
            entry["dtype"],
            " ".join(f"{k}={str(v)[:40]}" for k, v in entry["shape"].items() if v is not False),
            ms_text(entry["best_ms"]) if entry["best_ms"] is not None else "-",
            str(entry["trials"]),
            str(entry["failures"]),
        )
        for entry in sorted(entries, key=lambda entry: -(entry["best_ms"] or 0))
    ]
    columns = ["workload", "family", "dtype", "shape", ">best", ">trials", ">failed"]
    return table(columns, rows)


def _described(trial: Trial) -> dict[str, Any]:
    from ..tuning.importers import json_of_trial

    content = json_of_trial(trial)
    content.pop("original", None)
    return {"key": trial.workload.key.hex(), **content}


def _print_trials(trials: Iterable[Trial], as_json: bool) -> None:
    if as_json:
        print_json([_described(trial) for trial in trials])
        return
    rows = []
    for trial in trials:
        when = time.strftime("%Y-%m-%d %H:%M", time.gmtime(trial.timestamp))
        knobs = " ".join(f"{name}={str(v).lower()}" for name, v in trial.knobs.items())
        rows.append(
            (
                trial.workload.key.hex()[:12],
                trial.workload.family,
                ms_text(trial.cost * 1e3) if not trial.error else trial.error.name.lower(),
                knobs or "-",
                trial.source,
                trial.device.name,
                when if trial.timestamp else "-",
            )
        )
    columns = ["workload", "family", ">cost", "knobs", "from", "device", "when (UTC)"]
    out_console().print(table(columns, rows))


@app.command("best")
@command
def show_best(
    file: File,
    as_json: Json = False,
    _verbose: Verbose = False,
    _quiet: Quiet = False,
    _debug: Debug = False,
) -> None:
    """Show the best trial of each workload."""
    with open_journal(file) as journal:
        best = [journal.trial_of(entry) for entry in journal.entries()]
        _print_trials([trial for trial in best if trial is not None], as_json)
        report_damage(journal)


@app.command("show")
@command
def show_trials(
    file: File,
    workload: Annotated[
        str,
        typer.Option("--workload", metavar="KEY", help="Only of workloads whose key begins so."),
    ] = "",
    last: Annotated[
        int, typer.Option("--last", metavar="N", min=0, help="The last ones; 0 shows all.")
    ] = 20,
    events: Annotated[bool, typer.Option("--events", help="Events instead of trials.")] = False,
    as_json: Json = False,
    _verbose: Verbose = False,
    _quiet: Quiet = False,
    _debug: Debug = False,
) -> None:
    """Show trials, or events, in the order in which they were recorded."""
    from ..tuning.importers import json_of_event

    with open_journal(file) as journal:
        if events:
            found = list(journal.events())[-last:]
            if as_json:
                print_json([json_of_event(event) for event in found])
            else:
                rows = [
                    (
                        time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(event.timestamp)),
                        event.kind,
                        event.device.name if event.device else "-",
                        " ".join(f"{name}={value}" for name, value in event.details.items()),
                    )
                    for event in found
                ]
                columns = ["when (UTC)", "event", "device", "details"]
                out_console().print(table(columns, rows))
        else:
            trials = [t for t in journal.trials() if t.workload.key.hex().startswith(workload)]
            _print_trials(trials[-last:], as_json)
        report_damage(journal)


@app.command("verify")
@command
def verify_journals(
    files: Annotated[list[Path], typer.Argument(metavar="FILE…", help="Journals.")],
    as_json: Json = False,
    _verbose: Verbose = False,
    _quiet: Quiet = False,
    _debug: Debug = False,
) -> None:
    """Read every record of journals; exit status 1 where something cannot be read."""
    from ..tuning.maintenance import verify
    from ..tuning_logs import find_journal

    results = {str(path): verify(find_journal(path)) for path in files}
    if as_json:
        print_json(
            [
                {
                    "journal": name,
                    "good": checked.good,
                    "trials": checked.trials,
                    "failures": checked.failures,
                    "events": checked.events,
                    "damage": [damage._asdict() for damage in checked.damage],
                    "tail": checked.tail._asdict() if checked.tail else None,
                }
                for name, checked in results.items()
            ]
        )
    else:
        for name, checked in results.items():
            state = ("Good", "green") if checked.good else ("Damaged", "bold yellow")
            note(state, f" {name}: {checked.trials} trials ({checked.failures} of them failed)")
            for damage in [*checked.damage, *([checked.tail] if checked.tail else [])]:
                note(f"  {damage}")
    if not all(checked.good for checked in results.values()):
        raise typer.Exit(1)
