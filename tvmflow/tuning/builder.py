"""Building candidates: a task and knobs to a module that any server with OpenCL can load."""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import tvm
from tvm import IRModule, tirx

from ..deploy.link import Host
from ..deploy.writer import export_library
from ..schedules import schedule_function
from ..target import TargetSpec
from ..tir_pipeline import TIR_PIPELINE
from .process import Pool, WorkerLostError
from .tasks import Argument, Task, arguments_of

#: The name of the one function in a module.
ENTRY = "candidate"
#: Seconds that building one candidate may take.
BUILD_LIMIT_S = 60.0


@dataclass(frozen=True)
class Built:
    """A candidate as a module, or why there is none.

    Parameters
    ----------
    task
        Digest of the task.
    knobs
        The candidate.
    source_hash
        Of the kernels' source: candidates with the same are the same. Empty if none was made.
    path
        A shared library in TVM's own format, with the function :data:`ENTRY`; candidates of the
        same source have the same.
    arguments
        What the function takes, results last.
    error
        Why there is no library.
    seconds
        Time of the build.
    """

    task: str
    knobs: Mapping[str, Any]
    source_hash: str
    path: Path | None
    arguments: tuple[Argument, ...]
    error: str | None
    seconds: float


class Builder:
    """A pool of build processes.

    Parameters
    ----------
    workers
        Processes; default one a core.
    limit_s
        Seconds that one build may take.
    """

    def __init__(self, workers: int | None = None, limit_s: float = BUILD_LIMIT_S):
        self._pool = Pool(workers or len(os.sched_getaffinity(0)))
        self._limit_s = limit_s
        self._owner = tempfile.TemporaryDirectory(prefix="tvmflow-tune-")
        self.folder = Path(self._owner.name)

    def submit(self, task: Task, knobs: Mapping[str, Any] | None) -> Future[Built]:
        """Build a candidate; ``None`` stands for the heuristic's knobs.  The future never fails."""
        chosen = dict(task.heuristic if knobs is None else knobs)
        # Without what it has cached: TVM's objects do not travel.
        target = replace(task.target)
        text = text_of(task)
        call = self._pool.submit(
            build_candidate,
            *(text, target, chosen, task.digest, str(self.folder)),
            timeout_s=self._limit_s,
        )
        result: Future[Built] = Future()

        def finish(done: Future[Any]) -> None:
            if done.cancelled():
                result.cancel()
                return
            error = done.exception()
            if error is None:
                result.set_result(done.result())
                return
            kind = "The build failed" if isinstance(error, WorkerLostError) else "No code"
            message = f"{kind}: {error}"
            result.set_result(
                Built(task.digest, chosen, "", None, task.arguments, message, self._limit_s)
            )

        call.add_done_callback(finish)
        return result

    def close(self) -> None:
        """End the processes, and remove what they built."""
        self._pool.close()
        self._owner.cleanup()


_texts: dict[str, str] = {}


def text_of(task: Task) -> str:
    """The task's function as text, made once."""
    if task.digest not in _texts:
        _texts[task.digest] = tvm.ir.save_json(task.function)
    return _texts[task.digest]


# -- in the build process --------------------------------------------------------------------


@lru_cache(maxsize=64)
def function_of(text: str) -> tirx.PrimFunc:
    """Read a function's text, once for all of its candidates."""
    return tvm.ir.load_json(text)


def build_candidate(
    text: str, target: TargetSpec, knobs: dict[str, Any], digest: str, folder: str
) -> Built:
    """Schedule, lower and link one candidate; called in a worker process."""
    started = time.perf_counter()
    function = function_of(text)

    def built(source: str, path: Path | None, error: str | None) -> Built:
        seconds = time.perf_counter() - started
        return Built(digest, knobs, source, path, arguments_of(function), error, seconds)

    with target.tvm_target:
        scheduled = schedule_function(function, target, knobs)
        if scheduled.source != "given":
            return built("", None, "The knobs do not lead to a schedule.")
        try:
            library = lower(scheduled.schedule.mod["main"], target)
        except Exception as error:  # noqa: BLE001 (whatever TVM finds is the candidate's fault)
            lines = str(error).strip().splitlines() or [type(error).__name__]
            return built("", None, f"No code can be generated: {lines[-1]}")
    source = source_hash(library, target)
    path = Path(folder, f"{source}.so")
    if not path.exists():
        link(library, path, target)
    return built(source, path, None)


def lower(function: tirx.PrimFunc, target: TargetSpec) -> tvm.runtime.Module:
    """Generate code for one scheduled function."""
    named = function.with_attrs(
        {"global_symbol": ENTRY, "tirx.noalias": True, "tirx.is_scheduled": True}
    )
    return tvm.tirx.build(IRModule({ENTRY: named}), target=target.tvm_target, pipeline=TIR_PIPELINE)


def link(library: tvm.runtime.Module, path: Path, target: TargetSpec) -> None:
    """Write a library for the target's host."""
    with tempfile.TemporaryDirectory(dir=path.parent) as work:
        machine = Host.parse(target.host) if target.host else Host.native()
        made = Path(work, path.name)
        export_library(library, made, machine, Path(work))
        # Two processes may build the same: each writes it whole.
        made.replace(path)


def source_hash(library: tvm.runtime.Module, target: TargetSpec) -> str:
    """A hash of what runs: the kernels, and the host's code that launches them."""
    content = hashlib.sha256(str(target.host).encode())
    queue = [library]
    while queue:
        module = queue.pop()
        queue.extend(module.imports)
        # The host's code holds the launches' sizes.
        content.update(str(module.inspect_source()).encode())
    return content.hexdigest()[:24]
