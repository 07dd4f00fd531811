"""``tvmflow journal``: read, check, merge and convert tuning journals."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..ir.units import bytes_text
from .output import note, note_file, print_json, print_table, state
from .session import command
from .text import knobs_text, ms_text

if TYPE_CHECKING:
    from ..journal.journal import Journal
    from ..journal.records import Trial
    from ..runtime.json_types import JsonMapping, JsonObject

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


@contextmanager
def _opened(path: Path) -> Iterator[Journal]:
    """Open a journal, also one that ships with tvmflow; report its damage in the end."""
    from ..journal.journal import Journal
    from ..tuning_logs import find_journal

    with Journal.open(find_journal(path)) as journal:
        yield journal
        for damage in journal.damage:
            note(("Damaged: ", "bold yellow"), f"{journal.path}: {damage}")
        if journal.tail is not None:
            note(("Incomplete: ", "bold yellow"), f"{journal.path}: {journal.tail}")


@app.command("ls", epilog=_EXAMPLES)
@command
def list_journals(files: list[Path]) -> None:
    """List the workloads of journals, with their best cost and their number of trials."""
    described: list[JsonObject] = []
    for path in files:
        with _opened(path) as journal:
            found = journal.entries()
            known = [(e, journal.workload(e.workload), journal.trial_of(e)) for e in found]
            entries: list[JsonObject] = [
                {
                    "workload": entry.workload.hex(),
                    **{of: getattr(workload, of) for of in ("family", "dtype", "storage")},
                    "shape": dict(workload.shape),
                    "best_ms": entry.cost * 1e3 if entry.cost < float("inf") else None,
                    "predicted": best is not None and best.target.is_predicted,
                    "trials": entry.trials,
                    "failures": entry.failures,
                }
                for entry, workload, best in known
                if workload is not None
            ]
            size = journal.path.stat().st_size
            described.append({"journal": str(journal.path), "bytes": size, "workloads": entries})
            if not state.json:
                total = sum(entry["trials"] for entry in entries)
                title = f"{journal.path}: {total} trials, {bytes_text(size)}"
                _print_workloads(title, entries)
    print_json(described)


def _print_workloads(title: str, entries: Sequence[JsonMapping]) -> None:
    rows = [
        (
            *(entry["workload"][:12], entry["family"], entry["dtype"]),
            " ".join(f"{k}={str(v)[:40]}" for k, v in entry["shape"].items() if v is not False),
            (ms_text(entry["best_ms"]) if entry["best_ms"] is not None else "-")
            + (" predicted" if entry["predicted"] else ""),
            *(entry["trials"], entry["failures"]),
        )
        for entry in sorted(entries, key=lambda entry: -(entry["best_ms"] or 0))
    ]
    columns = ["workload", "family", "dtype", "shape", ">best", ">trials", ">failed"]
    print_table(title, columns, rows)


def _print_trials(trials: Sequence[Trial]) -> None:
    from ..tuning.importers import json_of_trial

    described = [{"key": trial.workload.key.hex(), **json_of_trial(trial)} for trial in trials]
    for content in described:
        content.pop("original", None)
    if print_json(described):
        return
    rows = [
        (
            trial.workload.key.hex()[:12],
            trial.workload.family,
            ms_text(trial.cost * 1e3) if not trial.error else trial.error.name.lower(),
            knobs_text(trial.knobs),
            trial.source,
            trial.device.name,
            _utc_text(trial.timestamp)[:-3] if trial.timestamp else "-",
        )
        for trial in trials
    ]
    columns = ["workload", "family", ">cost", "knobs", "from", "device", "when (UTC)"]
    print_table(None, columns, rows)


def _utc_text(timestamp: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(timestamp))


@app.command("best")
@command
def show_best(file: Path) -> None:
    """Show the best trial of each workload."""
    with _opened(file) as journal:
        best = [journal.trial_of(entry) for entry in journal.entries()]
        _print_trials([trial for trial in best if trial is not None])


@app.command("show")
@command
def show_trials(
    file: Path,
    workload: Annotated[str, "KEY", "Only workloads whose key begins with this."] = "",
    last: Annotated[int, typer.Option(min=0), "N", "Number of the last records; 0 shows all."] = 20,
    events: Annotated[bool, "Show events instead of trials."] = False,
) -> None:
    """Show trials, or events, in the order in which they were recorded."""
    from ..tuning.importers import json_of_event

    with _opened(file) as journal:
        if not events:
            trials = [t for t in journal.trials() if t.workload.key.hex().startswith(workload)]
            _print_trials(trials[-last:])
            return
        found = list(journal.events())[-last:]
        if print_json([json_of_event(event) for event in found]):
            return
        rows = [
            (
                _utc_text(event.timestamp),
                event.kind,
                event.device.name if event.device else "-",
                " ".join(f"{name}={value}" for name, value in event.details.items()),
            )
            for event in found
        ]
        print_table(None, ["when (UTC)", "event", "device", "details"], rows)


@app.command("verify")
@command
def verify_journals(files: list[Path]) -> None:
    """Read every record of journals; exit with status 1 if a record cannot be read."""
    from ..tuning.maintenance import verify
    from ..tuning_logs import find_journal

    results = {str(path): verify(find_journal(path)) for path in files}
    if not print_json([{"journal": n, "good": c.good, **vars(c)} for n, c in results.items()]):
        for name, checked in results.items():
            label = ("Good", "green") if checked.good else ("Damaged", "bold yellow")
            note(label, f" {name}: {checked.trials} trials ({checked.failures} of them failed)")
            for damage in [*checked.damage, *([checked.tail] if checked.tail else [])]:
                note(f"  {damage}")
    if not all(checked.good for checked in results.values()):
        raise typer.Exit(1)


@app.command("merge")
@command
def merge_journals(
    output: Annotated[Path, typer.Argument(), "OUT", "Journal to append to or create."],
    files: Annotated[list[Path], "FILE…", "Journals to read from."],
) -> None:
    """Append the records of journals to another one, each record once."""
    from ..tuning.maintenance import merge
    from ..tuning_logs import find_journal

    merged = merge(output, [find_journal(path) for path in files])
    if not print_json(merged):
        about = f": {merged.trials} trials and {merged.events} events added"
        note_file(output, f"{about}, {merged.repeated} already present")


@app.command("compact")
@command
def compact_journal(
    file: Annotated[Path, "FILE", "A journal."],
    output: Annotated[Path | None, "OUT", "The new file. Default: replace FILE."] = None,
    best: Annotated[
        int | None, typer.Option(min=1), "N", "Keep the N fastest of each workload."
    ] = None,
) -> None:
    """Rewrite a journal, compressed and without damaged records."""
    from ..tuning.maintenance import compact

    trials = compact(file, output, best)
    final = output or file
    size = final.stat().st_size
    if not print_json({"journal": str(final), "trials": trials, "bytes": size}):
        note_file(final, f": {trials} trials, {bytes_text(size)}")


@app.command("export")
@command
def export_journal(
    file: Path,
    output: Annotated[Path, "OUT", "The file or folder to write."],
    form: Annotated[
        str,
        typer.Option("--format"),
        "json|metaschedule|autotvm",
        "One JSON object a line with everything, a MetaSchedule database (a folder) of the "
        "trials that have a trace, or an AutoTVM log.",
    ] = "json",
) -> None:
    """Write the trials of a journal for other tools."""
    from ..tuning.maintenance import check_format, export

    check_format(form)
    with _opened(file) as journal:
        written, left = export(journal.trials(), form, output)
    if print_json({"output": str(output), "exported": written, "left_out": left}):
        pass
    elif left:
        why = "have no MetaSchedule trace" if form == "metaschedule" else "are predicted"
        note(f"exported {written} of {written + left} trials: {left} {why}")
    else:
        note_file(output, f": {written} trials")


@app.command("import")
@command
def import_logs(
    files: Annotated[
        list[Path],
        "FILE…",
        "AutoTVM logs (format 0.2), MetaSchedule databases, JSON exports or reports of libraries.",
    ],
    journal: Annotated[Path, "FILE", "Journal to append to or create."],
    device_name: Annotated[str, "NAME", "Device that the logs were measured on."] = "unknown",
    key: Annotated[str, "KEY", "The device's key at a tracker."] = "",
    origin: Annotated[str, typer.Option("--note"), "TEXT", "Origin of the logs, to store."] = "",
    usable: Annotated[
        bool, "Refuse trials that failed, and tasks that no schedule family computes."
    ] = False,
    library: Annotated[
        Path | None,
        "FILE",
        "Library of --choices that wrote the files (tvmflow_tune_report).",
    ] = None,
) -> None:
    """Append the trials of other tools' logs to a journal; they are parsed, never executed."""
    from ..journal.journal import Journal
    from ..journal.records import Device
    from ..tuning.importers import import_file

    device = Device(key, device_name)
    with Journal.open(journal, "a") as target:
        if library is not None:
            from ..tuning.tuned_libraries import import_report

            results = [import_report(target, path, library, origin) for path in files]
        else:
            results = [import_file(target, path, device, origin, usable=usable) for path in files]
    described = [{"file": r.path, "imported": r.records, "refused": r.refused} for r in results]
    if not print_json(described):
        for result in results:
            note(f"{result.path}: {result}")
