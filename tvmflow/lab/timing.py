"""Times of calls that take turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

#: Calls that take less than this are made once more before they are timed.
_SHORT_S = 0.2
_ROUNDS = 30
#: Threads of OpenBLAS ask for work for 2²⁸ cycles, some 0.1 s, before they sleep, and take a core
#: from whoever is next.
_REST_S = 0.15


@dataclass(frozen=True)
class Times:
    """Times of calls, in milliseconds, by the host's clock."""

    median_ms: float
    p10_ms: float
    p90_ms: float
    runs: int


def in_turn(calls: Mapping[str, Callable[[], Any]], seconds: float) -> dict[str, Times]:
    """Time calls in turn, so that what disturbs the machine disturbs all of them.

    Each is timed at least once, at most 30 times, and until it has taken ``seconds``.  The last one
    may leave threads that are awake.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _round in range(_ROUNDS):
        if all(taken and sum(taken) >= seconds for taken in times.values()):
            break
        time.sleep(_REST_S)
        for name, call in calls.items():
            if times[name] and sum(times[name]) >= seconds:
                continue
            if not times[name] or times[name][-1] < _SHORT_S:
                # The caches are this one's then, and its threads awake.
                call()
            started = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - started)
    return {name: _summary(taken) for name, taken in times.items()}


def _summary(taken: Sequence[float]) -> Times:
    p10, median, p90 = np.percentile(taken, [10, 50, 90]) * 1e3
    return Times(float(median), float(p10), float(p90), len(taken))
