"""Building candidates: a task and knobs to a module that any server with OpenCL can load."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import tvm

from ..codegen.half import half_lengths
from ..runtime.process import Pool, WorkerLostError
from .building import ENTRY, Built, build_candidate
from .case import Case, write_case
from .quiet import Quiet
from .tasks import Task

logger = logging.getLogger(__name__)

#: Seconds that building one candidate may take.
BUILD_LIMIT_S = 60.0
#: Seconds that computing a task's results in plain loops may take.
CASE_LIMIT_S = 120.0


class Builder:
    """A pool of build processes.

    Parameters
    ----------
    workers
        Processes; default one a core.
    limit_s
        Seconds that one build may take.
    device_index
        Of the OpenCL device of this machine's CPUs that candidates are for: its driver's compiler
        then runs here, beside the measurements.  ``None`` for any other device.
    """

    def __init__(
        self,
        workers: int | None = None,
        limit_s: float = BUILD_LIMIT_S,
        device_index: int | None = None,
    ):
        self._owner = tempfile.TemporaryDirectory(prefix="tvmflow-tune-")
        self.folder = Path(self._owner.name)
        #: The cache of programs that builds fill, if they compile kernels.
        self.programs = None if device_index is None else self.folder / "programs"
        environment = {
            "TVMFLOW_CACHE": "1",
            "TVMFLOW_CACHE_DIR": str(self.programs),
            # A program of one kernel is little beside the declarations of all functions.
            "TVMFLOW_FEW_DECLARATIONS": "1",
        }
        self._pool = Pool(workers or len(os.sched_getaffinity(0)), environment)
        self._limit_s = limit_s
        self._device_index = device_index

    def submit(self, task: Task, knobs: Mapping[str, Any] | None) -> Future[Built]:
        """Build a candidate; ``None`` stands for the heuristic's knobs.  The future never fails."""
        chosen = dict(task.heuristic if knobs is None else knobs)
        # Without what it has cached: TVM's objects do not travel.
        target = replace(task.target)
        text = text_of(task)
        result: Future[Built] = Future()

        def start(device_index: int | None) -> None:
            call = self._pool.submit(
                build_candidate,
                *(text, target, chosen, task.digest, str(self.folder), device_index),
                timeout_s=self._limit_s,
            )
            call.add_done_callback(lambda done: finish(done, device_index))

        def finish(done: Future[Any], device_index: int | None) -> None:
            if done.cancelled():
                result.cancel()
                return
            error = done.exception()
            if error is None:
                result.set_result(done.result())
                return
            if device_index is not None:
                # What the kernel or the driver did to the process is found out by measuring.
                start(None)
                return
            kind = "The build failed" if isinstance(error, WorkerLostError) else "No code"
            message = f"{kind}: {error}"
            result.set_result(
                Built(task.digest, chosen, "", None, task.arguments, message, self._limit_s)
            )

        start(self._device_index)
        return result

    def make_case(self, task: Task, seed: int = 0) -> Future[Case]:
        """Compute a task's case; without results where that fails.  The future never fails."""
        lengths = tuple(half_lengths(task.function))
        path = self.folder / f"{task.digest}.npz"
        result: Future[Case] = Future()

        def start(with_results: bool) -> None:
            arguments = text_of(task), task.results, str(path), seed, with_results
            call = self._pool.submit(write_case, *arguments, timeout_s=CASE_LIMIT_S)
            call.add_done_callback(lambda done: finish(done, with_results))

        def finish(done: Future[Any], with_results: bool) -> None:
            if done.cancelled():
                result.cancel()
            elif with_results and (error := done.exception()) is not None:
                logger.warning(
                    "What %s should compute could not be found out: %s. Its candidates are not "
                    "checked.",
                    task.name,
                    error,
                )
                start(False)
            else:
                result.set_result(Case(path, lengths))

        start(True)
        return result

    @property
    def quiet(self) -> Quiet:
        """What disturbs a measurement on this machine's CPUs now."""
        return Quiet(self.folder / "busy", self._pool.processes)

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


__all__ = ["ENTRY", "Builder", "Built"]
