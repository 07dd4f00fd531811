"""AutoTVM's JSON logs, format 0.2.

A line is ``{"input": [target, task, arguments, {}], "config": {"index", "code_hash",
"entity": [[knob, "sp" | "ot" | …, value], …]}, "result": [seconds, error, seconds of the trial,
time], "version": 0.2, "tvm_version"}``.  It is kept whole, so that it can be exported again.
"""

from __future__ import annotations

import re
from typing import Any

from ...journal.records import Device, Error, Original, Target, Trial, Workload, canonical

FORMAT = "autotvm"
VERSION = 0.2
#: What tasks of our own families are called.
OWN = "tvmflow."

_PICKLED = re.compile(rb"[A-Za-z0-9+/=\t ]{24,}\s*$")


def is_pickled(line: bytes) -> bool:
    """Whether a line that is no JSON looks like a pickle in base64."""
    return _PICKLED.match(line) is not None


def trial(line: dict[str, Any], device: Device) -> Trial:
    """The trial of a line.

    Raises
    ------
    ValueError, TypeError, KeyError, IndexError
        If it is no such line; the message says why.
    """
    if line.get("version") != VERSION:
        raise ValueError(f"format {line.get('version')!r} instead of {VERSION}")
    target, task, arguments, _ = line["input"]
    costs, error, seconds, timestamp = line["result"]
    config = line["config"]
    if isinstance(config, str) or "entity" not in config:
        raise ValueError("its knobs are a pickle, which is never unpickled")
    entity = {name: (kind, value) for name, kind, value in config["entity"]}
    workload, knobs = _meaning(task, arguments, entity)
    kind = str(target).split()[0]
    preset = re.search(r"-device=(\S+)", target)
    failed = Error(int(error))
    if failed is Error.NONE and not all(type(c) in (int, float) and c > 0 for c in costs):
        raise ValueError(f"its costs are {costs!r}")
    return Trial(
        workload,
        Target(kind, preset[1] if preset else ""),
        device,
        knobs,
        tuple(map(float, costs)),
        failed,
        timestamp=float(timestamp),
        seconds=float(seconds),
        toolchain={"tvm": str(line["tvm_version"])},
        source=FORMAT,
        original=Original(FORMAT, line),
    )


def _meaning(
    task: str, arguments: list[Any], entity: dict[str, tuple[str, Any]]
) -> tuple[Workload, dict[str, Any]]:
    """The workload and knobs of our families, else a workload that nothing asks for."""
    if task.startswith(OWN):
        dtype, storage, accumulate, signature, shape = arguments
        family = task.removeprefix(OWN)
        workload = Workload(family, dict(shape), dtype, storage, accumulate, signature)
        return workload, {name: value for name, (_, value) in entity.items()}
    # Schedules import TVM, which takes a second that no other use of this module needs.
    from .autotvm_knobs import Task, knobs_of

    parsed = Task.parse(task, arguments)
    if parsed is not None:
        return parsed.workload, knobs_of(parsed, entity)
    shape = {"arguments": canonical(arguments).decode()}
    return Workload(f"{FORMAT}.{task}", shape, dtype="", storage="", accumulate=""), {}


def document(trial: Trial) -> dict[str, Any]:
    """The line of a trial: as it was imported, or one of ours that AutoTVM can parse."""
    if trial.original is not None and trial.original.format == FORMAT:
        return dict(trial.original.document)
    work, target = trial.workload, trial.target
    arguments = [work.dtype, work.storage, work.accumulate, work.signature, dict(work.shape)]
    entity = [[name, "ot", value] for name, value in trial.knobs.items()]
    return {
        "input": [f"{target.kind} -device={target.device}", OWN + work.family, arguments, {}],
        "config": {"index": -1, "code_hash": None, "entity": entity},
        "result": [list(trial.costs), int(trial.error), trial.seconds, trial.timestamp],
        "version": VERSION,
        "tvm_version": trial.toolchain.get("apache-tvm", ""),
    }
