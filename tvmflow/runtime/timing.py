"""Timing of calls by the host's clock: one, many, or several in turn, and their spread."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

#: A shorter call is repeated: once untimed, then timed.
_SHORT_MS = 200.0
_TIMED = 3
_ROUNDS = 10
#: OpenBLAS's threads spin for 2²⁸ cycles, some 0.1 s, before they sleep, and take a core from the
#: next call.  Length and number of observations of this process, and the share of time up to which
#: its threads count as asleep.
_LOOK_S = 0.005
_LOOKS = 80
_LITTLE = 0.2


@dataclass(frozen=True)
class Spread:
    """Median, tenth and ninetieth percentile of call times, in milliseconds."""

    median_ms: float
    p10_ms: float
    p90_ms: float

    @classmethod
    def of(cls, times_ms: Sequence[float]) -> Spread:
        """Return the spread of at least one time."""
        p10, median, p90 = np.percentile(times_ms, [10, 50, 90])
        return Spread(float(median), float(p10), float(p90))


@dataclass(frozen=True)
class Times(Spread):
    """Spread of the times of a number of calls."""

    runs: int


def elapsed_ms(call: Callable[[], object]) -> float:
    """Return the time of a call in milliseconds."""
    started = time.perf_counter()
    call()
    return (time.perf_counter() - started) * 1e3


def repeat(
    measure: Callable[[], float], *, least: int = 1, most: float = inf, seconds: float | None = None
) -> list[float]:
    """Measure ``least`` times, then until there are ``most`` times or ``seconds`` have passed."""
    end = inf if seconds is None else time.perf_counter() + seconds
    times: list[float] = []
    while len(times) < least or (len(times) < most and time.perf_counter() < end):
        times.append(measure())
    return times


def in_turn(calls: Mapping[str, Callable[[], object]], seconds: float) -> dict[str, Times]:
    """Time calls in turn, so that a disturbance of the machine affects all of them.

    Each is timed at least once, in at most 10 rounds of up to 3 calls, until it has taken
    ``seconds``.  The last one may leave threads that are awake.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _round in range(_ROUNDS):
        left = [name for name, taken in times.items() if not taken or sum(taken) < seconds * 1e3]
        if not left:
            break
        wait_for_sleep()
        for name in left:
            first = elapsed_ms(calls[name])
            # One short call warms the caches and wakes up its threads.
            long = first >= _SHORT_MS
            times[name] += [first] if long else [elapsed_ms(calls[name]) for _ in range(_TIMED)]
    return {name: Times(**vars(Spread.of(taken)), runs=len(taken)) for name, taken in times.items()}


def wait_for_sleep() -> None:
    """Wait until no thread of this process is awake, 0.4 s at most."""
    for _look in range(_LOOKS):
        before = time.process_time()
        time.sleep(_LOOK_S)
        if time.process_time() - before < _LITTLE * _LOOK_S:
            break
