"""Where candidates are measured: what a runner is, and the one for this machine's devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Protocol

import tvm
import tvm_ffi

from ..journal.records import Device
from ..runtime import plugin
from ..runtime.devices import list_devices
from ..runtime.process import Pool, WorkerLostError
from .building import Built
from .case import Case
from .measure import BUILD, CRASH, TIMEOUT, Config, Measured, Session
from .progress import Standing
from .quiet import Quiet

#: Seconds that measuring one candidate may take, its kernels' compilation included.
MEASURE_LIMIT_S = 60.0
#: TVM's device of each target.
DEVICES = {"opencl": "opencl", "cuda": "cuda", "llvm": "cpu"}


class Runner(Protocol):
    """Measures candidates on one device or several."""

    def submit(self, built: Built, case: Case, rival: Built | None = None) -> Future[Measured]:
        """Queue a candidate; its future never fails, except that it may be cancelled.

        With a rival, both are timed in turn on the same device.
        """

    def devices(self) -> Sequence[Device]:
        """What measures, as far as that is known yet."""

    def standings(self) -> Sequence[Standing]:
        """What each of several devices contributed."""

    def close(self) -> None:
        """Give the devices back."""


class LocalRunner:
    """Measures on a device of this machine, in a process that kernels may crash or block.

    Parameters
    ----------
    target
        ``opencl``, ``cuda`` or ``llvm``.
    index
        Of the device among those of the target.
    config
        How to measure.
    limit_s
        After so many seconds the process is replaced, and the candidate has failed.
    quiet
        What runs on the device's own CPUs and must hold still while a kernel is timed.
    programs
        The cache of programs that builds fill; default none.
    """

    def __init__(
        self,
        target: str,
        index: int = 0,
        config: Config | None = None,
        limit_s: float = MEASURE_LIMIT_S,
        quiet: Callable[[], Quiet] | None = None,
        programs: Path | None = None,
    ):
        self._device = (target, index, config or Config())
        self._limit_s = limit_s
        self._quiet = quiet
        # Candidates are built once and never again: the user's cache is for others.
        environment = {"TVMFLOW_CACHE": str(int(programs is not None))}
        self._pool = Pool(1, environment | {"TVMFLOW_CACHE_DIR": str(programs)})

    def submit(self, built: Built, case: Case, rival: Built | None = None) -> Future[Measured]:
        """Queue a candidate; its future never fails, except that it may be cancelled."""
        result: Future[Measured] = Future()
        if built.path is None:
            result.set_result(Measured((), BUILD, str(built.error), "", 0.0))
            return result
        quiet = self._quiet() if self._quiet is not None else None
        call = self._pool.submit(
            measure_here, self._device, built, case, rival, quiet, timeout_s=self._limit_s
        )
        call.add_done_callback(lambda done: _finish(done, result, quiet))
        return result

    def devices(self) -> Sequence[Device]:
        """The device."""
        target, index, _ = self._device
        found = self._pool.submit(identify_here, target, index, timeout_s=self._limit_s).result()
        return [Device("", *found)]

    def standings(self) -> Sequence[Standing]:
        """There is one device: nothing to tell."""
        return ()

    def close(self) -> None:
        """End the process."""
        self._pool.close()


def _finish(done: Future[Any], result: Future[Measured], quiet: Quiet | None) -> None:
    if done.cancelled():
        result.cancel()
        return
    error = done.exception()
    if error is None:
        result.set_result(done.result())
        return
    if quiet is not None:
        quiet.end()
    kind = TIMEOUT if isinstance(error, WorkerLostError) and error.timed_out else CRASH
    result.set_result(Measured((), kind, str(error), "", 0.0))


# -- in the measuring process ----------------------------------------------------------------

_sessions: list[tuple[tuple[str, int, Config], Session]] = []


def measure_here(
    where: tuple[str, int, Config],
    built: Built,
    case: Case,
    rival: Built | None,
    quiet: Quiet | None,
) -> Measured:
    """Measure a candidate in this process, which keeps its session."""
    session = next((session for known, session in _sessions if known == where), None)
    if session is None:
        target, index, config = where
        if target == "opencl":
            plugin.load()
        session = Session(tvm.device(DEVICES[target], index), load_here, config)
        session.name, session.driver = identify_here(target, index)
        _sessions.append((where, session))
    kept = quiet.kept if quiet is not None else nullcontext
    return session.measure(built, case, rival, kept)


def identify_here(target: str, index: int) -> tuple[str, str]:
    """Name and driver of a device of this machine."""
    found = (d for d in list_devices() if (d.kind, d.index) == (target, index))
    device = next(found, None)
    return (device.name, device.driver) if device is not None else ("", "")


def load_here(path: Path) -> Any:
    """Load a library that is unloaded when the last reference has gone."""
    return tvm_ffi.load_module(path, keep_module_alive=False)
