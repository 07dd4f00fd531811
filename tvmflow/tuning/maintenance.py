"""Maintenance of journals: merge, compact, check and export."""

from __future__ import annotations

import heapq
import itertools
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from ..errors import JournalError
from ..journal.frames import MAGIC, Damage
from ..journal.journal import Journal
from ..journal.records import Event, Trial, canonical, digest
from ..module.files import TEXT, Kind, begins_with, publish, staging
from . import importers

FORMATS = ("json", "metaschedule", "autotvm")


@dataclass
class Merged:
    """Result of a merge."""

    trials: int = 0
    events: int = 0
    #: Records that were already present.
    repeated: int = 0


def merge(output: Path, inputs: Sequence[Path]) -> Merged:
    """Append the records of ``inputs`` to a journal, each record once.

    Raises `JournalError` if an input cannot be read, or ``output`` cannot be written.
    """
    result = Merged()
    with ExitStack() as stack:
        journals = [stack.enter_context(Journal.open(path)) for path in inputs]
        target = stack.enter_context(Journal.open(output, "a"))
        seen = {identity for _, identity in _records(target)}
        for record, identity in itertools.chain.from_iterable(map(_records, journals)):
            if identity in seen:
                result.repeated += 1
                continue
            seen.add(identity)
            target.append(record)
            result.trials += isinstance(record, Trial)
            result.events += isinstance(record, Event)
    return result


def _records(journal: Journal) -> Iterator[tuple[Trial | Event, bytes]]:
    """Yield events and trials, with a hash of their contents."""
    for event in journal.events():
        yield event, digest("event", canonical(importers.json_of_event(event)))
    for trial in journal.trials():
        yield trial, digest("trial", canonical(importers.json_of_trial(trial)))


def compact(path: Path, output: Path | None = None, best: int | None = None) -> int:
    """Rewrite a journal, compressed and without damage; return the number of trials.

    The new file is ``output``, or replaces the journal.  With ``best``, only that many of the
    fastest trials are kept for each workload and compatibility key of targets.

    Raises `JournalError` or `ArtifactError` if it is being written, or the new file cannot be.
    """
    final = output or path
    # A journal that is replaced may have damaged first bytes, so it is not checked.
    kind = None if output is None else Kind("a journal", begins_with(MAGIC))
    # Opened to append, although only read, to lock it against writers.
    Journal.open(path).close()
    with Journal.open(path, "a") as source, staging(final, kind) as folder:
        trials = list(source.trials())
        if best is not None:
            groups: dict[tuple[bytes, bytes], list[Trial]] = defaultdict(list)
            for trial in trials:
                groups[trial.workload.key, trial.target.compatibility_key].append(trial)
            fastest = (heapq.nsmallest(best, g, key=lambda t: t.cost) for g in groups.values())
            trials = list(itertools.chain.from_iterable(fastest))
        written = folder / final.name
        with Journal.open(written, "a") as target:
            target.append_compressed(trials)
            for event in source.events():
                target.append(event)
        publish({written: final})
    return len(trials)


@dataclass
class Checked:
    """Numbers of a journal's records, and its damage."""

    trials: int
    failures: int
    events: int
    damage: list[Damage]
    tail: Damage | None

    @property
    def good(self) -> bool:
        """Return whether all of it can be read."""
        return not self.damage and self.tail is None


def verify(path: Path) -> Checked:
    """Read every record of a journal; `JournalError` if it is not a journal."""
    with Journal.open(path) as journal:
        trials = list(journal.trials())
        events = len(list(journal.events()))
        failures = sum(trial.error != 0 for trial in trials)
        return Checked(len(trials), failures, events, journal.damage, journal.tail)


# -- export -------------------------------------------------------------------------------------


def export(trials: Iterable[Trial], form: str, output: Path) -> tuple[int, int]:
    """Write trials in another format; return how many were written, and how many cannot be.

    ``json`` and ``autotvm`` are files of lines; ``metaschedule`` is a folder of two files, for the
    trials that came with a trace.  AutoTVM's lines cannot mark predicted times: such trials are
    left out.

    Raises `ArtifactError` if ``output`` cannot be written.
    """
    with staging(output, TEXT) as folder:
        if form == "metaschedule":
            return _export_database(trials, output, folder)
        document = importers.json_of_trial if form == "json" else importers.autotvm_line
        written, count, left = folder / output.name, 0, 0
        with written.open("w", encoding="utf-8") as file:
            for trial in trials:
                if form == "autotvm" and trial.target.is_predicted:
                    left += 1
                    continue
                file.write(_line(document(trial)))
                count += 1
        publish({written: output})
        return count, left


def _export_database(trials: Iterable[Trial], output: Path, folder: Path) -> tuple[int, int]:
    modules: dict[str, int] = {}
    left = count = 0
    records, workloads = folder / importers.RECORDS, folder / importers.WORKLOADS
    with records.open("w", encoding="utf-8") as lines, workloads.open("w") as module_lines:
        for trial in trials:
            parts = importers.metaschedule_parts(trial)
            if parts is None:
                left += 1
                continue
            number = modules.setdefault(_line(parts[0]), len(modules))
            lines.write(_line([number, parts[1]]))
            count += 1
        module_lines.writelines(modules)
    if count:
        output.mkdir(exist_ok=True)
        publish({workloads: output / workloads.name, records: output / records.name})
    return count, left


def _line(content: object) -> str:
    return json.dumps(content, separators=(",", ":")) + "\n"


def check_format(form: str) -> None:
    """Check that a format is known; `JournalError` with the known ones if not."""
    if form not in FORMATS:
        raise JournalError(
            f"The format {form!r} is not known; expected one of {', '.join(FORMATS)}.",
            remedy="Choose one of them with `format`.",
        )
