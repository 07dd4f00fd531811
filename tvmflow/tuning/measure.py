"""Measuring of candidates: runners, the runner for this machine, and sessions on one device.

A candidate is checked once, then timed, alone or in turn with the task's best one so far, the
*incumbent*.
"""

from __future__ import annotations

import statistics
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import tvm
import tvm_ffi

from ..journal.records import Device, Value
from ..module.session import DEVICES
from ..runtime import plugin
from ..runtime.devices import list_devices
from ..runtime.process import Pool, WorkerLostError
from ..runtime.threads import share_threads
from . import building
from .building import ENTRY, Built, Case, ExclusiveCpu
from .tasks import Argument
from .timing import StopRule, time_alone, time_in_turn

#: Reasons why a trial has no costs.
BUILD, WRONG, CRASH, TIMEOUT, DEVICE = "build", "wrong", "crash", "timeout", "device"
#: Change of the reference kernel's time, as a factor, above which a trial is measured again.
CHANGED = 1.5
#: Libraries that stay loaded: incumbents of a few tasks, and candidates that may become one.
_KEPT = 16
#: Fewest consecutive runs of a kernel that takes less time than its launch.
_FEW = 10
#: Time limit of measuring one candidate in seconds, including compilation of its kernels.
MEASURE_LIMIT_S = 60.0


@dataclass(frozen=True)
class Measured:
    """Result of a candidate on a device."""

    #: Seconds of single runs, or of means over a few short ones; empty after an error.
    costs: tuple[float, ...]
    #: One of :data:`BUILD`, :data:`WRONG`, :data:`CRASH`, :data:`TIMEOUT`, :data:`DEVICE`, or
    #: ``None``.
    error: str | None = None
    #: Details of the error.
    message: str = ""
    #: The device's own name.
    device: str = ""
    #: Time of the fixed reference kernel, relative to its first time.
    drift: float = 1.0
    #: Costs relative to those of the incumbent timed in turn, pair by pair; empty without one.
    ratios: tuple[float, ...] = ()
    #: The device's driver, if known.
    driver: str = ""
    #: Further facts about the device, for the journal.
    facts: Mapping[str, Value] = field(default_factory=dict)
    #: Temperatures and other conditions, for people.
    conditions: Mapping[str, float] = field(default_factory=dict)

    @property
    def cost(self) -> float:
        """Return the median of the costs; infinite without any."""
        return statistics.median(self.costs) if self.costs else float("inf")


@dataclass(frozen=True)
class Config:
    """Settings of measurements."""

    rule: StopRule = field(default_factory=StopRule)
    #: Kernels shorter than this run several times for one cost.
    min_repeat_ms: int = 1
    #: Pause before each candidate.
    cool_down_s: float = 0.0
    #: The kernel that shows drift, or ``None``.
    reference: Built | None = None
    #: Candidates between two timings of it.
    reference_every: int = 16


@dataclass(frozen=True)
class Standing:
    """Contribution of a device of a farm."""

    device: str
    trials: int
    #: Reason why it currently gets no trials; empty if it does.
    aside: str


class Memory(Protocol):
    """Memory of one argument on a device."""

    def write(self, array: np.ndarray) -> None:
        """Copy an array to the device."""

    def read(self) -> np.ndarray:
        """Copy the array back to the host."""


class CandidateDevice(Protocol):
    """Interface of a device that runs candidates; it may be remote."""

    def load(self, path: Path) -> Any:
        """Load a built candidate, which is unloaded with its last reference."""

    def reserve(self, argument: Argument) -> Memory:
        """Allocate memory for an argument."""

    def run(self, loaded: Any, memory: Sequence[Any]) -> None:
        """Run a candidate once on memory from `reserve`, and wait for its end."""

    def time(self, loaded: Any, memory: Sequence[Any], times: int, rounds: int) -> Sequence[float]:
        """Return the mean time of some runs in seconds for each round, after an untimed run."""


@dataclass(frozen=True)
class TvmDevice(CandidateDevice):
    """A device of TVM, on which ``loader`` loads libraries."""

    device: tvm.runtime.Device
    loader: Callable[[Path], tvm.runtime.Module]

    def load(self, path: Path) -> tvm.runtime.Module:
        """Load a library."""
        return self.loader(path)

    def reserve(self, argument: Argument) -> building.Memory:
        """Allocate memory for an argument."""
        return building.Memory(argument, self.device)

    def run(self, loaded: tvm.runtime.Module, memory: Sequence[building.Memory]) -> None:
        """Run a library's function."""
        loaded[ENTRY](*(each.tensor for each in memory))

    def time(
        self, loaded: tvm.runtime.Module, memory: Sequence[building.Memory], times: int, rounds: int
    ) -> Sequence[float]:
        """Return the mean time of some runs in seconds for each round, after an untimed run."""
        timer = loaded.time_evaluator(ENTRY, self.device, number=times, repeat=rounds)
        found: Sequence[float] = timer(*(each.tensor for each in memory)).results
        return found


@dataclass
class Session:
    """Measurements on one device."""

    device: CandidateDevice
    config: Config
    name: str = ""
    driver: str = ""

    def __post_init__(self) -> None:
        self._case: Path | None = None
        self._memory: list[Memory] = []
        self._wanted: list[np.ndarray] = []
        self._libraries: OrderedDict[Path, Any] = OrderedDict()
        self._since = 0
        self.first: float | None = None
        #: Exception of the last measurement, if the device raised one.
        self.failure: Exception | None = None
        self._drift = 1.0

    def measure(
        self,
        built: Built,
        case: Case,
        incumbent: Built | None = None,
        exclusive: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> Measured:
        """Check a built candidate with its task's case, and time it.

        The incumbent is timed in turn with it; ``exclusive`` keeps the machine idle meanwhile.
        """
        self.failure = None
        try:
            time.sleep(self.config.cool_down_s)
            self._look_at_reference(exclusive, alone=incumbent is None)
            self._take(built, case)
            library = self._library(built)
            if message := self._wrong(library, built, case):
                measured = Measured((), WRONG, message)
            else:
                run = self._timed(library)
                # Load before stopping other processes, which may hold a lock of the driver.
                against = None if incumbent is None else self._timed(self._library(incumbent))
                with exclusive():
                    if against is None:
                        measured = Measured(time_alone(run, self.config.rule))
                    else:
                        costs, rivals = time_in_turn(run, against, self.config.rule)
                        ratios = tuple(a / b for a, b in zip(costs, rivals, strict=True))
                        measured = Measured(tuple(costs), ratios=ratios)
        except Exception as failure:  # noqa: BLE001 (drivers fail in every way)
            self.failure = failure
            measured = Measured((), DEVICE, f"{type(failure).__name__}: {failure}".strip())
        return replace(measured, device=self.name, drift=self._drift, driver=self.driver)

    def _take(self, built: Built, case: Case) -> None:
        """Copy a case to the device, where it stays for candidates of the same task."""
        if self._case == case.path:
            return
        inputs, self._wanted = case.load()
        self._reserve(built)
        for memory, array in zip(self._memory, inputs, strict=False):
            memory.write(array)
        self._case = case.path

    def _reserve(self, built: Built) -> None:
        """Allocate memory for a candidate's arguments, after freeing the memory of earlier ones."""
        self._case, self._memory = None, []
        self._memory = [self.device.reserve(argument) for argument in built.arguments]

    def _wrong(self, library: Any, built: Built, case: Case) -> str:
        """Run a candidate once; return how its results differ from the case's, if they do."""
        results = self._memory[len(self._memory) - len(self._wanted) :]
        for memory, wanted in zip(results, self._wanted, strict=True):
            # Overwrite an earlier candidate's results with a value that no result has everywhere,
            # so that they cannot pass for this candidate's.
            memory.write(np.full(wanted.shape, np.nan if wanted.dtype.kind == "f" else 1))
        self.device.run(library, self._memory)
        got = [memory.read() for memory in results]
        for found in building.compare_results(built.arguments, case.lengths, got, self._wanted):
            if not found.passed:
                return f"{found.name} is wrong by {found.max_rel_error:.1e} of its magnitude"
        return ""

    def _library(self, built: Built) -> Any:
        """Load a candidate, unless it is still loaded.

        If a file were loaded twice, calls would use the state of the remaining copy.
        """
        assert built.path is not None
        if built.path not in self._libraries:
            self._libraries[built.path] = self.device.load(built.path)
            if len(self._libraries) > _KEPT:
                self._libraries.popitem(last=False)
        self._libraries.move_to_end(built.path)
        return self._libraries[built.path]

    def _timed(self, library: Any) -> Callable[[int], Sequence[float]]:
        """Return a function that times so many rounds of a kernel on the case.

        Short kernels run several times in each.
        """
        started = time.perf_counter()
        (once,) = self.device.time(library, self._memory, 1, 1)
        wall = time.perf_counter() - started
        wanted = self.config.min_repeat_ms * 1e-3
        times = max(1, round(wanted / once)) if once > 0 else 1
        # Launching may take much longer than the kernel.
        times = min(times, max(_FEW, round(wanted / wall)))
        return lambda rounds: self.device.time(library, self._memory, times, rounds)

    def _look_at_reference(
        self, exclusive: Callable[[], AbstractContextManager[None]], alone: bool
    ) -> None:
        """Time the fixed kernel from time to time, with its own arguments."""
        reference = self.config.reference
        due = self.first is None or self._since >= self.config.reference_every
        # After a pause the device may have recovered, which only matters for costs measured alone.
        due |= alone and max(self._drift, 1 / self._drift) > CHANGED
        self._since += 1
        if reference is None or not reference.source_hash or not due:
            return
        self._since = 1
        self._reserve(reference)
        for memory, argument in zip(self._memory, reference.arguments, strict=True):
            memory.write(np.full(argument.shape, 0.5))
        run = self._timed(self._library(reference))
        with exclusive():
            cost = statistics.median(run(9))
        self.first = self.first or cost
        self._drift = cost / self.first


class Runner(Protocol):
    """Interface to measure candidates on one device or several."""

    def submit(self, built: Built, case: Case, incumbent: Built | None = None) -> Future[Measured]:
        """Queue a candidate; its future never fails, but may be cancelled.

        With an incumbent, both are timed in turn on the same device.
        """

    def devices(self) -> Sequence[Device]:
        """Return the measuring devices, as far as they are known yet."""

    def standings(self) -> Sequence[Standing]:
        """Return the contribution of each device; nothing for a single device."""
        return ()

    def close(self) -> None:
        """Release the devices."""


class LocalRunner(Runner):
    """A runner on a device of this machine, in a process that kernels may crash or block.

    ``target`` is ``opencl``, ``cuda`` or ``llvm``, and ``index`` one of its devices.  After
    ``limit_s`` the process is replaced, and the candidate has failed.  ``exclusive_cpu`` gives
    exclusive use of the device's CPUs while a kernel is timed, and ``programs`` is the program
    cache that builds fill.
    """

    def __init__(
        self,
        target: str,
        index: int = 0,
        config: Config | None = None,
        limit_s: float = MEASURE_LIMIT_S,
        exclusive_cpu: Callable[[], ExclusiveCpu] | None = None,
        programs: Path | None = None,
    ):
        self._device = (target, index, config or Config())
        self._limit_s = limit_s
        self._exclusive_cpu = exclusive_cpu
        # Each candidate is built only once, so it does not use the user's cache.
        environment = {
            "TVMFLOW_CACHE": str(int(programs is not None)),
            "TVMFLOW_CACHE_DIR": str(programs),
            **building.ONE_BY_ONE,
        }
        self._pool = Pool(1, environment)

    def submit(self, built: Built, case: Case, incumbent: Built | None = None) -> Future[Measured]:
        """Queue a candidate; see `Runner`."""
        if built.path is None:
            return building.finished(Measured((), BUILD, str(built.error)))
        exclusive = self._exclusive_cpu() if self._exclusive_cpu is not None else None
        arguments = self._device, built, case, incumbent, exclusive

        def failed(error: BaseException | None) -> Future[Measured]:
            if exclusive is not None:
                exclusive.release()
            kind = TIMEOUT if isinstance(error, WorkerLostError) and error.timed_out else CRASH
            return building.finished(Measured((), kind, str(error)))

        return building.first_success(
            lambda _: self._pool.submit(measure_here, *arguments, timeout_s=self._limit_s), failed
        )

    def devices(self) -> Sequence[Device]:
        """Return the device."""
        found = self._pool.submit(identify_here, *self._device[:2], timeout_s=self._limit_s)
        return [Device("", *found.result())]

    def close(self) -> None:
        """End the process."""
        self._pool.close()


# -- in the measuring process --------------------------------------------------------------------

_session: Session | None = None


def measure_here(
    where: tuple[str, int, Config],
    built: Built,
    case: Case,
    incumbent: Built | None,
    exclusive: ExclusiveCpu | None,
) -> Measured:
    """Measure a candidate in this process, which has one session, on its runner's device."""
    global _session
    if _session is None:
        target, index, config = where
        if target == "opencl":
            plugin.load()
        device = TvmDevice(tvm.device(DEVICES[target], index), load_here)
        _session = Session(device, config, *identify_here(target, index))
    hold = exclusive.held if exclusive is not None else nullcontext
    return _session.measure(built, case, incumbent, hold)


def identify_here(target: str, index: int) -> tuple[str, str]:
    """Return name and driver of a device of this machine."""
    found = ((d.name, d.driver) for d in list_devices() if (d.kind, d.index) == (target, index))
    return next(found, ("", ""))


def load_here(path: Path) -> tvm.runtime.Module:
    """Load a library that is unloaded with its last reference."""
    library = tvm_ffi.load_module(path, keep_module_alive=False)
    # Modules do the same.
    share_threads(path)
    return library
