"""Conversion of other tools' logs, and of JSON, to and from a journal's trials.

Logs are read line by line, and rejected lines are counted.  A line is only parsed as JSON, and
pickles are never unpickled.  AutoTVM's lines and MetaSchedule's modules and traces are kept whole,
so that they can be exported again.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..errors import JournalError
from ..journal import records
from ..journal.journal import Journal
from ..journal.records import Device, Error, Event, Original, Target, Trial, Value, Workload
from ..runtime.json_types import JsonObject
from ..runtime.regular_files import open_file, read_bytes

#: A parsed line.
Document = Any

#: Most rejected lines that a message lists.
NAMED_LINES = 5

AUTOTVM = "autotvm"
AUTOTVM_VERSION = 0.2
#: Prefix of our families' task names in AutoTVM's logs.
OWN = "tvmflow."
_PICKLED = re.compile(rb"[A-Za-z0-9+/=\t ]{24,}\s*$")

METASCHEDULE = "metaschedule"
RECORDS, WORKLOADS = "database_tuning_record.json", "database_workload.json"
#: Cost that MetaSchedule writes for a candidate that failed.
FAILED_SECONDS = 1e9


class RefusedLineError(ValueError):
    """Raised for a line that is not a record; the text completes a sentence about the line."""


@dataclass
class Imported:
    """Result of importing a file."""

    path: Path
    records: int = 0
    #: Reasons by line number.
    refused: dict[int, str] = field(default_factory=dict)

    def __str__(self) -> str:
        text = f"imported {self.records} of {self.records + len(self.refused)} lines"
        named = [f"line {n} {why}" for n, why in self.refused.items()]
        if len(named) > NAMED_LINES:
            named[NAMED_LINES:] = [f"and {len(named) - NAMED_LINES} more"]
        return ": ".join([text, *(["; ".join(named)] if named else [])])


def import_file(
    journal: Journal,
    path: Path,
    device: Device | None = None,
    note: str = "",
    *,
    usable: bool = False,
) -> Imported:
    """Append the trials of a log to a journal.

    ``path`` is an AutoTVM log, a MetaSchedule database (one of its two files, or their folder), or
    a file that ``tvmflow journal export --format json`` wrote.  Logs do not name the ``device``
    that they were measured on; ``note`` is their origin, for the records' provenance.  With
    ``usable``, trials that no compilation can use are refused, too: those that failed, and those of
    tasks that no schedule family computes.

    Raises `JournalError` if the file cannot be read or has another format, or none of its lines is
    a record.
    """
    if path.is_dir() or path.name == WORKLOADS:
        path = (path if path.is_dir() else path.parent) / RECORDS
    result = Imported(path)
    provenance: dict[str, Value] = {"file": path.name, **({"note": note} if note else {})}
    device = device or Device("", "unknown")
    parse: Callable[[Document], Trial] | None = None
    for number, line in _lines(path):
        try:
            document = _parse(line)
            parse = parse or _parser(document, path, device)
            if parse is None:
                raise RefusedLineError("is no record of AutoTVM, MetaSchedule or tvmflow")
            trial = parse(document)
            for part in (trial.workload, trial.target, trial.device):
                part.check()
            if usable:
                _check_usable(trial)
        except RefusedLineError as error:
            result.refused[number] = str(error)
            continue
        except RecursionError:
            result.refused[number] = "is nested too deeply"
            continue
        except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
            result.refused[number] = f"is no record of its kind ({type(error).__name__}: {error})"
            continue
        if not trial.provenance:
            trial = replace(trial, provenance={**provenance, "line": number})
        try:
            journal.append(trial)
        except RecursionError:
            result.refused[number] = "is nested too deeply"
            continue
        result.records += 1
    if not result.records:
        raise JournalError(
            f"{path} was expected to be a tuning log, but {result}.",
            remedy="Name an AutoTVM log (format 0.2), a MetaSchedule database or an export of "
            "tvmflow.",
        )
    return result


def _check_usable(trial: Trial) -> None:
    if trial.error:
        raise RefusedLineError(f"failed ({trial.error.name.lower().replace('_', ' ')})")
    tool, _, task = trial.workload.family.partition(".")
    if tool in (AUTOTVM, METASCHEDULE):
        raise RefusedLineError(f"is a task that no schedule family computes ({task or tool})")


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        with open_file(path) as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield number, line
    except OSError as error:
        raise JournalError(
            f"Importing {path} failed: {error.strerror or error}.",
            remedy="Name a file that can be read.",
        ) from error


def _parse(line: bytes) -> Document:
    try:
        return json.loads(line)
    except ValueError as error:
        if _PICKLED.match(line):
            raise RefusedLineError("is a pickle, which is never unpickled") from None
        raise RefusedLineError(f"is no JSON ({str(error) or type(error).__name__})") from None


def _parser(document: Document, path: Path, device: Device) -> Callable[[Document], Trial] | None:
    if isinstance(document, dict) and "workload" in document:
        return trial_of
    if isinstance(document, dict) and "input" in document:
        return lambda line: autotvm_trial(line, device)
    if isinstance(document, list) and len(document) == 2:
        workloads = read_workloads(path)
        return lambda line: metaschedule_trial(line, workloads, device)
    return None


# -- JSON with all fields of a journal's records ------------------------------------------------


def json_of_trial(trial: Trial) -> JsonObject:
    """Return a trial as a JSON object."""
    content = records.vars_of(trial)
    content |= {name: records.vars_of(content[name]) for name in ("workload", "target", "device")}
    content |= {"error": trial.error.name, "costs": list(trial.costs)}
    if (original := content.pop("original")) is not None:
        content["original"] = original._asdict()
    return content


def json_of_event(event: Event) -> JsonObject:
    """Return an event as a JSON object."""
    device = None if event.device is None else records.vars_of(event.device)
    return {**records.vars_of(event), "device": device}


def trial_of(content: JsonObject) -> Trial:
    """Return the trial of a JSON object; `KeyError`, `TypeError` or `ValueError` if it is none."""
    original = content.get("original")
    for name, kind in (("message", str), ("source", str), ("knobs", dict), ("provenance", dict)):
        if not isinstance(content[name], kind):
            raise TypeError(f"its {name} is {content[name]!r}")
    if not all(isinstance(version, str) for version in content["toolchain"].values()):
        raise TypeError("versions are texts")
    return Trial(
        **{
            **content,
            "workload": Workload(**content["workload"]),
            "target": Target(**content["target"]),
            "device": Device(**content["device"]),
            "error": Error[content["error"]],
            "costs": tuple(map(float, content["costs"])),
            "timestamp": float(content["timestamp"]),
            "seconds": float(content["seconds"]),
            "original": None if original is None else Original(**original),
        }
    )


# -- AutoTVM's logs ------------------------------------------------------------------------------


def autotvm_trial(line: JsonObject, device: Device) -> Trial:
    """Read a line of AutoTVM's JSON logs, format 0.2, which is kept whole.

    It is ``{"input": [target, task, arguments, {}], "config": {"index", "code_hash", "entity":
    [[knob, "sp" | "ot" | …, value], …]}, "result": [seconds, error, seconds of the trial, time],
    "version": 0.2, "tvm_version"}``.

    Raises `ValueError`, `TypeError`, `KeyError` or `IndexError` with the reason if the line has
    another form.
    """
    if line.get("version") != AUTOTVM_VERSION:
        raise ValueError(f"format {line.get('version')!r} instead of {AUTOTVM_VERSION}")
    target, task, arguments, _ = line["input"]
    costs, error, seconds, timestamp = line["result"]
    config = line["config"]
    if isinstance(config, str) or "entity" not in config:
        raise ValueError("its knobs are a pickle, which is never unpickled")
    entity = {name: (kind, value) for name, kind, value in config["entity"]}
    workload, knobs = _autotvm_meaning(task, arguments, entity)
    kind = str(target).split()[0]
    preset = re.search(r"-device=(\S+)", target)
    failed = Error(int(error))
    if failed is Error.NONE and not all(type(c) in (int, float) and c > 0 for c in costs):
        raise ValueError(f"its costs are {costs!r}")
    return Trial(
        *(workload, Target(kind, preset[1] if preset else ""), device, knobs),
        costs=tuple(map(float, costs)),
        error=failed,
        timestamp=float(timestamp),
        seconds=float(seconds),
        toolchain={"tvm": str(line["tvm_version"])},
        source=AUTOTVM,
        original=Original(AUTOTVM, line),
    )


def _autotvm_meaning(
    task: str, arguments: list, entity: dict[str, tuple[str, Document]]
) -> tuple[Workload, JsonObject]:
    """Return the workload and knobs of our families, else a workload that is never looked up."""
    if task.startswith(OWN):
        dtype, storage, accumulate, signature, shape = arguments
        family = task.removeprefix(OWN)
        workload = Workload(family, dict(shape), dtype, storage, accumulate, signature)
        return workload, {name: value for name, (_, value) in entity.items()}
    # Imported here: schedules import TVM, which takes a second and is not needed otherwise.
    from .autotvm_knobs import meaning_of

    if (meaning := meaning_of(task, arguments, entity)) is not None:
        return meaning
    shape = {"arguments": records.canonical(arguments).decode()}
    return Workload(f"{AUTOTVM}.{task}", shape, dtype="", storage="", accumulate=""), {}


def autotvm_line(trial: Trial) -> JsonObject:
    """Return the line of a trial: the imported one, or a line that AutoTVM can parse."""
    if trial.original is not None and trial.original.format == AUTOTVM:
        return dict(trial.original.document)
    work, target = trial.workload, trial.target
    arguments = [work.dtype, work.storage, work.accumulate, work.signature, dict(work.shape)]
    entity = [[name, "ot", value] for name, value in trial.knobs.items()]
    return {
        "input": [f"{target.kind} -device={target.device}", OWN + work.family, arguments, {}],
        "config": {"index": -1, "code_hash": None, "entity": entity},
        "result": [list(trial.costs), int(trial.error), trial.seconds, trial.timestamp],
        "version": AUTOTVM_VERSION,
        "tvm_version": trial.toolchain.get("apache-tvm", ""),
    }


# -- MetaSchedule's databases --------------------------------------------------------------------


def read_workloads(beside: Path) -> list[Workload]:
    """Read the modules that belong to a file of records; `JournalError` if that fails."""
    path = beside.with_name(beside.name.replace("tuning_record", "workload"))
    try:
        rows = [json.loads(line) for line in read_bytes(path).splitlines() if line.strip()]
        return [_workload(*row) for row in rows]
    except (OSError, ValueError, TypeError, RecursionError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise JournalError(
            f"The workloads of {beside} should be in {path}, but that could not be read: {reason}.",
            remedy="Keep both files of a MetaSchedule database in one folder.",
        ) from error


def _workload(structural_hash: str, module: str) -> Workload:
    if not isinstance(structural_hash, str) or not isinstance(module, str):
        raise ValueError("a line is no pair of texts")
    shape = {"hash": structural_hash, "module": module}
    return Workload(METASCHEDULE, shape, dtype="", storage="", accumulate="")


def metaschedule_trial(line: list, workloads: list[Workload], device: Device) -> Trial:
    """Read a line ``[workload, [trace, seconds, target, arguments]]``; errors as for AutoTVM's."""
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
        *(device, {}, costs, Error.UNKNOWN if failed else Error.NONE),
        source=METASCHEDULE,
        original=Original(METASCHEDULE, record),
    )


def metaschedule_parts(trial: Trial) -> tuple[list[str], Document] | None:
    """Return a trial's module and record in MetaSchedule's form; ``None`` without them.

    If the original document is an object, it has both, under ``workload`` and ``record``.
    """
    if trial.original is None or trial.original.format != METASCHEDULE:
        return None
    document = trial.original.document
    if isinstance(document, dict):
        return document["workload"], document["record"]
    shape = trial.workload.shape
    return [str(shape["hash"]), str(shape["module"])], document
