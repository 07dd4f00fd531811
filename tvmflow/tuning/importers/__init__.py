"""Reading of other tools' logs into journals, line by line, with a count of what was refused.

A line is parsed as JSON and nothing else: what was pickled stays pickled.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...errors import JournalError
from ...journal.journal import Journal
from ...journal.records import Device, Trial
from . import autotvm, metaschedule, native

#: Refused lines that a message names.
NAMED_LINES = 5


class RefusedLineError(ValueError):
    """A line that is no record, with the reason as the rest of a sentence about the line."""


@dataclass
class Imported:
    """What came of a file."""

    path: Path
    records: int = 0
    #: Reasons by the number of the line.
    refused: dict[int, str] = field(default_factory=dict)

    def __str__(self) -> str:
        total = self.records + len(self.refused)
        text = f"imported {self.records} of {total} lines"
        if not self.refused:
            return text
        named = [f"line {n} {why}" for n, why in list(self.refused.items())[:NAMED_LINES]]
        more = len(self.refused) - len(named)
        return f"{text}: {'; '.join(named)}" + (f"; and {more} more" if more else "")


def import_file(
    journal: Journal, path: Path, device: Device | None = None, note: str = ""
) -> Imported:
    """Append the trials of a log to a journal.

    Parameters
    ----------
    journal
        Opened to append.
    path
        An AutoTVM log, a MetaSchedule database (one of its two files, or their folder), or what
        ``tvmflow journal export --format json`` wrote.
    device
        What the log was measured on, which the log itself does not say.
    note
        Where it is from, for the records' provenance.

    Raises
    ------
    JournalError
        If the file cannot be read or is of no such form, or no line of it is a record.
    """
    path = metaschedule.records_file(path)
    result = Imported(path)
    provenance: dict[str, Any] = {"file": path.name, **({"note": note} if note else {})}
    device = device or Device("", "unknown")
    parse: Callable[[Any], Trial] | None = None
    for number, line in _lines(path):
        try:
            document = _parse(line)
            parse = parse or _parser(document, path, device)
            if parse is None:
                raise RefusedLineError("is no record of AutoTVM, MetaSchedule or tvmflow")
            trial = parse(document)
            for part in (trial.workload, trial.target, trial.device):
                part.check()
        except RefusedLineError as error:
            result.refused[number] = str(error)
            continue
        except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
            result.refused[number] = f"is no record of its kind ({type(error).__name__}: {error})"
            continue
        if not trial.provenance:
            trial = replaced(trial, {**provenance, "line": number})
        journal.append(trial)
        result.records += 1
    if not result.records:
        raise JournalError(
            f"{path} was expected to be a tuning log, but {result}.",
            remedy="Name an AutoTVM log (format 0.2), a MetaSchedule database or an export of "
            "tvmflow.",
        )
    return result


def replaced(trial: Trial, provenance: dict[str, Any]) -> Trial:
    """The same trial with another provenance."""
    return Trial(**{**vars(trial), "provenance": provenance})


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield number, line
    except OSError as error:
        raise JournalError(
            f"Importing {path} failed: {error.strerror or error}.",
            remedy="Name a file that can be read.",
        ) from error


def _parse(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        if autotvm.is_pickled(line):
            raise RefusedLineError("is a pickle, which is never unpickled") from None
        raise RefusedLineError(f"is no JSON ({str(error) or type(error).__name__})") from None


def _parser(document: Any, path: Path, device: Device) -> Callable[[Any], Trial] | None:
    """What reads lines like this one."""
    if isinstance(document, dict) and "workload" in document:
        return native.trial
    if isinstance(document, dict) and "input" in document:
        return lambda line: autotvm.trial(line, device)
    if isinstance(document, list) and len(document) == 2:
        workloads = metaschedule.read_workloads(path)
        return lambda line: metaschedule.trial(line, workloads, device)
    return None
