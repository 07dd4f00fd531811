"""``tvmflow journal merge``, ``compact``, ``export`` and ``import``: journals to files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .formats import bytes_text
from .journal import File, open_journal, report_damage
from .options import Debug, Json, Quiet, Verbose
from .session import command, note, note_file, print_json

Output = Annotated[
    Path | None,
    typer.Option("-o", "--output", metavar="OUT", help="The new file. Default: in its place."),
]


@command
def merge_journals(
    output: Annotated[Path, typer.Argument(metavar="OUT", help="Journal to append to or make.")],
    files: Annotated[list[Path], typer.Argument(metavar="FILE…", help="Journals to take from.")],
    as_json: Json = False,
    _verbose: Verbose = False,
    _quiet: Quiet = False,
    _debug: Debug = False,
) -> None:
    """Append the records of journals to another one, each record once."""
    from ..tuning.maintenance import merge
    from ..tuning_logs import find_journal

    merged = merge(output, [find_journal(path) for path in files])
    if as_json:
        print_json(vars(merged))
    else:
        about = f": {merged.trials} trials and {merged.events} events added"
        note_file(output, f"{about}, {merged.repeated} were there")


@command
def compact_journal(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A journal.")],
    output: Output = None,
    best: Annotated[
        int | None,
        typer.Option("--best", metavar="N", min=1, help="Keep the N fastest of each workload."),
    ] = None,
    as_json: Json = False,
    _verbose: Verbose = False,
    _quiet: Quiet = False,
    _debug: Debug = False,
) -> None:
    """Write a journal anew, compressed; what is damaged is left out."""
    from ..tuning.maintenance import compact

    trials = compact(file, output, best)
    final = output or file
    size = final.stat().st_size
    if as_json:
        print_json({"journal": str(final), "trials": trials, "bytes": size})
    else:
        note_file(final, f": {trials} trials, {bytes_text(size)}")


@command
def export_journal(
    file: File,
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="OUT", help="The file or folder to write.")
    ],
    form: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="json|metaschedule|autotvm",
            help="One JSON object a line with everything, a MetaSchedule database (a folder) of "
            "the trials that have a trace, or an AutoTVM log.",
        ),
    ] = "json",
    as_json: Json = False,
    _verbose: Verbose = False,
    _quiet: Quiet = False,
    _debug: Debug = False,
) -> None:
    """Write the trials of a journal for other tools."""
    from ..tuning.maintenance import check_format, export

    check_format(form)
    with open_journal(file) as journal:
        written, left = export(journal.trials(), form, output)
        report_damage(journal)
    if as_json:
        print_json({"output": str(output), "exported": written, "without_trace": left})
    elif left:
        note(f"exported {written} of {written + left} trials: {left} have no MetaSchedule trace")
    else:
        note_file(output, f": {written} trials")


@command
def import_logs(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE…",
            help="AutoTVM logs (format 0.2), MetaSchedule databases or JSON exports.",
        ),
    ],
    journal: Annotated[
        Path, typer.Option("--journal", metavar="FILE", help="Journal to append to or make.")
    ],
    device_name: Annotated[
        str,
        typer.Option("--device-name", metavar="NAME", help="The device that it was measured on."),
    ] = "unknown",
    key: Annotated[
        str, typer.Option("--key", metavar="KEY", help="The device's key at a tracker.")
    ] = "",
    origin: Annotated[
        str, typer.Option("--note", metavar="TEXT", help="Where the logs are from: kept.")
    ] = "",
    as_json: Json = False,
    _verbose: Verbose = False,
    _quiet: Quiet = False,
    _debug: Debug = False,
) -> None:
    """Append the trials of other tools' logs to a journal; they are parsed, never executed."""
    from ..journal.journal import Journal
    from ..journal.records import Device
    from ..tuning.importers import import_file

    device = Device(key, device_name)
    with Journal.open(journal, "a") as target:
        results = [import_file(target, path, device, origin) for path in files]
    if as_json:
        print_json(
            [{"file": str(r.path), "imported": r.records, "refused": r.refused} for r in results]
        )
        return
    for result in results:
        note(f"{result.path}: {result}")
