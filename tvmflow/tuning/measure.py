"""Measuring candidates on one device, local or behind RPC: checked once, then timed."""

from __future__ import annotations

import statistics
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .building import ENTRY, Built
from .case import Case, compare_results
from .memory import Memory
from .timing import Timing, time_alone, time_in_turn

#: Why a trial has no costs.
BUILD, WRONG, CRASH, TIMEOUT, DEVICE = "build", "wrong", "crash", "timeout", "device"
#: By so much the reference kernel's time may change: more, and it is measured again.
CHANGED = 1.5
#: Libraries that stay loaded: rivals of a few tasks, and who may become one.
_KEPT = 16
#: Runs in a row of a kernel that takes less time than its launch.
_FEW = 10


@dataclass(frozen=True)
class Measured:
    """What became of a candidate on a device.

    Parameters
    ----------
    costs
        Seconds of single runs, or of means over a few short ones; empty after an error.
    error
        One of :data:`BUILD`, :data:`WRONG`, :data:`CRASH`, :data:`TIMEOUT`, :data:`DEVICE`, or
        ``None``.
    message
        What is behind the error.
    device
        The device's own name.
    seconds
        How long measuring took.
    drift
        Time of the fixed reference kernel, relative to what it was at first.
    ratios
        Costs over those of the rival that was timed in turn, pair by pair; empty without one.
    driver
        The device's driver, as far as it is known.
    """

    costs: tuple[float, ...]
    error: str | None
    message: str
    device: str
    seconds: float
    drift: float = 1.0
    ratios: tuple[float, ...] = ()
    driver: str = ""

    @property
    def cost(self) -> float:
        """The median of the costs; infinite without any."""
        return statistics.median(self.costs) if self.costs else float("inf")


@dataclass(frozen=True)
class Config:
    """How candidates are measured.

    Parameters
    ----------
    timing
        When timing ends.
    min_repeat_ms
        Shorter kernels run several times for one cost.
    cool_down_s
        Pause before each candidate.
    reference
        The kernel that shows drift, or ``None``.
    reference_every
        Candidates between two looks at it.
    """

    timing: Timing = field(default_factory=Timing)
    min_repeat_ms: int = 1
    cool_down_s: float = 0.0
    reference: Built | None = None
    reference_every: int = 16


class Session:
    """What a device measures candidates with.

    Parameters
    ----------
    device
        TVM's device, which may be remote.
    load
        Brings a library there and loads it.
    config
        How to measure.
    """

    def __init__(self, device: Any, load: Callable[[Path], Any], config: Config):
        self.device = device
        self.name = str(device.device_name or device)
        self.driver = ""
        self._load = load
        self._config = config
        self._case: Path | None = None
        self._memory: list[Memory] = []
        self._wanted: list[np.ndarray] = []
        self._libraries: OrderedDict[Path, Any] = OrderedDict()
        self._since = 0
        self.first: float | None = None
        self._drift = 1.0

    def measure(
        self,
        built: Built,
        case: Case,
        rival: Built | None = None,
        quiet: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> Measured:
        """Check a candidate and time it.

        Parameters
        ----------
        built
            A candidate that has a library.
        case
            Its task's.
        rival
            The task's best candidate so far, which is timed in turn with this one.
        quiet
            Keeps the machine quiet while the candidate is timed.
        """
        started = time.perf_counter()
        costs: tuple[float, ...] = ()
        ratios: tuple[float, ...] = ()
        error, message = None, ""
        try:
            if self._config.cool_down_s:
                time.sleep(self._config.cool_down_s)
            self._look_at_reference(quiet, alone=rival is None)
            self._take(built, case)
            library = self._library(built)
            message = self._wrong(library, built, case)
            if message:
                error = WRONG
            else:
                run = self._timed(library)
                # Whoever has to be quiet may hold a lock of the driver's, which loading needs.
                against = None if rival is None else self._timed(self._library(rival))
                with quiet():
                    costs, ratios = self._time(run, against)
        except Exception as failure:  # noqa: BLE001 (drivers fail in every way)
            error, message = DEVICE, f"{type(failure).__name__}: {failure}".strip()
        seconds = time.perf_counter() - started
        return Measured(costs, error, message, self.name, seconds, self._drift, ratios, self.driver)

    @property
    def _tensors(self) -> list[Any]:
        return [memory.tensor for memory in self._memory]

    def _take(self, built: Built, case: Case) -> None:
        """Bring a case to the device; it stays while candidates of the same task follow."""
        if self._case == case.path:
            return
        self._case, self._memory = None, []
        inputs, self._wanted = case.load()
        self._memory = [Memory(argument, self.device) for argument in built.arguments]
        for memory, array in zip(self._memory, inputs, strict=False):
            memory.write(array)
        self._case = case.path

    def _wrong(self, library: Any, built: Built, case: Case) -> str:
        """Run a candidate once; say how its results differ from the case's, if they do."""
        results = self._memory[len(self._memory) - len(self._wanted) :]
        for memory, wanted in zip(results, self._wanted, strict=True):
            # What an earlier candidate left must not pass for this one's.
            memory.write(np.full(wanted.shape, _poison(wanted.dtype)))
        library[ENTRY](*self._tensors)
        got = [memory.read() for memory in results]
        for found in compare_results(built.arguments, case.lengths, got, self._wanted):
            if not found.passed:
                return f"{found.name} is wrong by {found.max_rel_error:.1e} of its magnitude"
        return ""

    def _time(
        self, run: Callable[[], float], rival: Callable[[], float] | None
    ) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Costs, and their ratios to the rival's."""
        if rival is None:
            return time_alone(run, self._config.timing), ()
        costs, rivals = time_in_turn(run, rival, self._config.timing)
        return tuple(costs), tuple(a / b for a, b in zip(costs, rivals, strict=True))

    def _library(self, built: Built) -> Any:
        """Load a candidate, unless it is still loaded.

        A file that is loaded twice would be called with the state of whichever is left.
        """
        assert built.path is not None
        if built.path not in self._libraries:
            self._libraries[built.path] = self._load(built.path)
            if len(self._libraries) > _KEPT:
                self._libraries.popitem(last=False)
        self._libraries.move_to_end(built.path)
        return self._libraries[built.path]

    def _timed(self, library: Any) -> Callable[[], float]:
        """What times a kernel with the case's arguments: a short one several times in a row."""
        started = time.perf_counter()
        once = self._evaluate(library, 1)
        wall = time.perf_counter() - started
        wanted = self._config.min_repeat_ms * 1e-3
        times = max(1, round(wanted / once)) if once > 0 else 1
        # Launching may take much longer than what is launched.
        times = min(times, max(_FEW, round(wanted / wall)))
        return lambda: self._evaluate(library, times)

    def _evaluate(self, library: Any, times: int) -> float:
        """The mean time of some runs, after one that is not timed."""
        timer = library.time_evaluator(ENTRY, self.device, number=times, repeat=1)
        return float(timer(*self._tensors).mean)

    def _look_at_reference(
        self, quiet: Callable[[], AbstractContextManager[None]], alone: bool
    ) -> None:
        """Time the fixed kernel now and then, beside its own arguments."""
        reference = self._config.reference
        due = self.first is None or self._since >= self._config.reference_every
        # After a pause the device may be as it was, which only a cost without a rival's asks for.
        due |= alone and max(self._drift, 1 / self._drift) > CHANGED
        self._since += 1
        if reference is None or not reference.source_hash or not due:
            return
        self._since = 1
        self._case = None
        self._memory = [Memory(argument, self.device) for argument in reference.arguments]
        for memory, argument in zip(self._memory, reference.arguments, strict=True):
            memory.write(np.full(argument.shape, 0.5))
        library = self._library(reference)
        run = self._timed(library)
        with quiet():
            cost = statistics.median(run() for _ in range(9))
        self.first = self.first or cost
        self._drift = cost / self.first


def _poison(dtype: np.dtype[Any]) -> Any:
    """A value that no result has everywhere."""
    return dtype.type(np.nan if dtype.kind == "f" else 1)
