"""MetaSchedule's JSON databases: a file of modules and a file of traces and costs.

The modules and traces are kept as the JSON that they are.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from ...errors import JournalError
from ...journal.records import Device, Error, Original, Target, Trial, Workload

FORMAT = "metaschedule"
RECORDS, WORKLOADS = "database_tuning_record.json", "database_workload.json"
#: What MetaSchedule writes as the cost of a candidate that failed.
FAILED_SECONDS = 1e9


def records_file(path: Path) -> Path:
    """The file of records, also of the database's folder, or of its other file."""
    if path.is_dir() or path.name == WORKLOADS:
        return (path if path.is_dir() else path.parent) / RECORDS
    return path


def read_workloads(records: Path) -> list[Workload]:
    """The modules beside a file of records.

    Raises
    ------
    JournalError
        If they cannot be read.
    """
    path = records.with_name(records.name.replace("tuning_record", "workload"))
    try:
        rows = [json.loads(line) for line in path.read_bytes().splitlines() if line.strip()]
        return [_workload(*row) for row in rows]
    except (OSError, ValueError, TypeError, RecursionError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise JournalError(
            f"The workloads of {records} should be in {path}, but that could not be read: "
            f"{reason}.",
            remedy="Keep both files of a MetaSchedule database in one folder.",
        ) from error


def _workload(structural_hash: str, module: str) -> Workload:
    if not isinstance(structural_hash, str) or not isinstance(module, str):
        raise ValueError("a line is no pair of texts")
    shape = {"hash": structural_hash, "module": module}
    return Workload(FORMAT, shape, dtype="", storage="", accumulate="")


def trial(line: list[Any], workloads: list[Workload], device: Device) -> Trial:
    """The trial of a line ``[workload, [trace, seconds, target, arguments]]``.

    Raises
    ------
    ValueError, TypeError, IndexError, KeyError
        If it is no such line.
    """
    number, record = line
    _trace, seconds, target, _arguments = record
    if type(number) is not int or not 0 <= number < len(workloads):
        raise ValueError(f"there is no workload {number!r}")
    costs = tuple(float(cost) for cost in seconds or ())
    failed = not costs or not all(0 < c < FAILED_SECONDS and math.isfinite(c) for c in costs)
    target = target if isinstance(target, dict) else {"kind": str(target)}
    return Trial(
        workloads[number],
        Target(str(target["kind"]), str(target.get("device", ""))),
        device,
        {},
        costs,
        Error.UNKNOWN if failed else Error.NONE,
        source=FORMAT,
        original=Original(FORMAT, record),
    )


def parts(trial: Trial) -> tuple[list[str], Any] | None:
    """A trial's module and record as MetaSchedule's files have them; ``None`` without them.

    A document that is an object has both, under ``workload`` and ``record``.
    """
    if trial.original is None or trial.original.format != FORMAT:
        return None
    document = trial.original.document
    if isinstance(document, dict):
        return document["workload"], document["record"]
    shape = trial.workload.shape
    return [str(shape["hash"]), str(shape["module"])], document
