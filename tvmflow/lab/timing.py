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


@dataclass(frozen=True)
class Times:
    """Times of calls, in milliseconds, by the host's clock."""

    median_ms: float
    p10_ms: float
    p90_ms: float
    runs: int


def in_turn(calls: Mapping[str, Callable[[], Any]], seconds: float) -> dict[str, Times]:
    """Time calls in turn, so that what disturbs the machine disturbs all of them.

    Each is timed at least once, at most 30 times, and until it has taken ``seconds``.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _round in range(_ROUNDS):
        for name, call in calls.items():
            if times[name] and sum(times[name]) >= seconds:
                continue
            if not times[name] or times[name][-1] < _SHORT_S:
                # Threads of the one before it (NumPy's BLAS keeps its own awake for a while) rest,
                # and the caches are this one's.
                call()
            started = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - started)
    return {name: _summary(taken) for name, taken in times.items()}


def _summary(taken: Sequence[float]) -> Times:
    p10, median, p90 = np.percentile(taken, [10, 50, 90]) * 1e3
    return Times(float(median), float(p10), float(p90), len(taken))
