"""Times of calls that take turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

#: A call that takes less than this is made some times in a row: once untimed, then timed.
_SHORT_S = 0.2
_TIMED = 3
_ROUNDS = 10
#: Threads of OpenBLAS ask for work for 2²⁸ cycles, some 0.1 s, before they sleep, and take a core
#: from whoever is next.  This process is looked at for so long, and at most so often: whether its
#: threads take more than a little of that time.
_LOOK_S = 0.005
_LOOKS = 80
_LITTLE = 0.2


@dataclass(frozen=True)
class Times:
    """Times of calls, in milliseconds, by the host's clock."""

    median_ms: float
    p10_ms: float
    p90_ms: float
    runs: int


def in_turn(calls: Mapping[str, Callable[[], Any]], seconds: float) -> dict[str, Times]:
    """Time calls in turn, so that what disturbs the machine disturbs all of them.

    Each is timed at least once, in at most 10 rounds with up to 3 calls of it, and until it has
    taken ``seconds``.  The last one may leave threads that are awake.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _round in range(_ROUNDS):
        left = [name for name, taken in times.items() if not taken or sum(taken) < seconds]
        if not left:
            break
        wait_for_sleep()
        for name in left:
            times[name] += _in_a_row(calls[name])
    return {name: _summary(taken) for name, taken in times.items()}


def wait_for_sleep() -> None:
    """Wait until no thread of this process is awake, 0.4 s at most."""
    for _look in range(_LOOKS):
        before = time.process_time()
        time.sleep(_LOOK_S)
        if time.process_time() - before < _LITTLE * _LOOK_S:
            break


def _in_a_row(call: Callable[[], Any]) -> list[float]:
    """Times of a long call, or of some short ones."""
    first = _timed(call)
    # After one short call, the caches are its, and its threads awake.
    return [first] if first >= _SHORT_S else [_timed(call) for _ in range(_TIMED)]


def _timed(call: Callable[[], Any]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def _summary(taken: Sequence[float]) -> Times:
    p10, median, p90 = np.percentile(taken, [10, 50, 90]) * 1e3
    return Times(float(median), float(p10), float(p90), len(taken))
