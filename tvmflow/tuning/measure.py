"""Measuring candidates on one device, local or behind RPC: checked once, then timed."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .building import ENTRY, Built
from .case import Case, compare_results
from .memory import Memory

#: Why a trial has no costs.
BUILD, WRONG, CRASH, TIMEOUT, DEVICE = "build", "wrong", "crash", "timeout", "device"


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
    """

    costs: tuple[float, ...]
    error: str | None
    message: str
    device: str
    seconds: float
    drift: float = 1.0

    @property
    def cost(self) -> float:
        """The median of the costs; infinite without any."""
        return statistics.median(self.costs) if self.costs else float("inf")


@dataclass(frozen=True)
class Config:
    """How candidates are measured.

    Parameters
    ----------
    spread
        Timing ends when half of the costs are within this part of their median …
    rounds
        … or after so many rounds.
    repeats
        Costs of a round.
    min_repeat_ms
        Shorter kernels run several times for one cost.
    hopeless
        A candidate this many times slower than the best is timed once only.
    cool_down_s
        Pause before each candidate.
    reference
        The kernel that shows drift, or ``None``.
    reference_every
        Candidates between two looks at it.
    """

    spread: float = 0.02
    rounds: int = 5
    repeats: int = 5
    min_repeat_ms: int = 1
    hopeless: float = 1.5
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
        self._load = load
        self._config = config
        self._case: Path | None = None
        self._memory: list[Memory] = []
        self._wanted: list[np.ndarray] = []
        self._since = 0
        self._first: float | None = None
        self._drift = 1.0

    def measure(
        self,
        built: Built,
        case: Case,
        bound_s: float | None,
        quiet: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> Measured:
        """Check a candidate and time it.

        Parameters
        ----------
        built
            A candidate that has a library.
        case
            Its task's.
        bound_s
            The task's best cost so far.
        quiet
            Keeps the machine quiet while the candidate is timed.
        """
        started = time.perf_counter()
        costs: tuple[float, ...] = ()
        error, message = None, ""
        try:
            if self._config.cool_down_s:
                time.sleep(self._config.cool_down_s)
            self._look_at_reference(quiet)
            self._take(built, case)
            assert built.path is not None
            library = self._load(built.path)
            message = self._wrong(library, built, case)
            if message:
                error = WRONG
            else:
                with quiet():
                    costs = self._time(library, bound_s)
        except Exception as failure:  # noqa: BLE001 (drivers fail in every way)
            error, message = DEVICE, f"{type(failure).__name__}: {failure}".strip()
        seconds = time.perf_counter() - started
        return Measured(costs, error, message, self.name, seconds, self._drift)

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

    def _time(self, library: Any, bound_s: float | None) -> tuple[float, ...]:
        config = self._config
        first = self._evaluate(library, 1)
        if bound_s is not None and first[0] > config.hopeless * bound_s:
            # Measured again: the first run may have met a cold cache.
            first = self._evaluate(library, 2)
            if min(first) > config.hopeless * bound_s:
                return first
        costs: list[float] = []
        for _ in range(config.rounds):
            costs += self._evaluate(library, config.repeats)
            low, middle, high = statistics.quantiles(costs, n=4)
            if high - low <= 2 * config.spread * middle:
                break
        return tuple(costs)

    def _evaluate(self, library: Any, repeats: int) -> tuple[float, ...]:
        timer = library.time_evaluator(
            ENTRY,
            self.device,
            number=1,
            repeat=repeats,
            min_repeat_ms=self._config.min_repeat_ms,
        )
        return tuple(float(cost) for cost in timer(*self._tensors).results)

    def _look_at_reference(self, quiet: Callable[[], AbstractContextManager[None]]) -> None:
        """Time the fixed kernel now and then, beside its own arguments."""
        reference = self._config.reference
        due = self._first is None or self._since >= self._config.reference_every
        self._since += 1
        if reference is None or reference.path is None or not due:
            return
        self._since = 1
        self._case = None
        self._memory = [Memory(argument, self.device) for argument in reference.arguments]
        for memory, argument in zip(self._memory, reference.arguments, strict=True):
            memory.write(np.full(argument.shape, 0.5))
        library = self._load(reference.path)
        library[ENTRY](*self._tensors)
        with quiet():
            cost = statistics.median(self._evaluate(library, 9))
        self._first = self._first or cost
        self._drift = cost / self._first


def _poison(dtype: np.dtype[Any]) -> Any:
    """A value that no result has everywhere."""
    return dtype.type(np.nan if dtype.kind == "f" else 1)
