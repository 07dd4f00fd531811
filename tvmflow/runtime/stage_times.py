"""How long the stages of a compilation take."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class StageTimes:
    """Wall time by stage, in the order in which they began.

    Stages nest: while an inner one runs, the clock of the outer one stands still.  So the times
    add up to that of the outermost stage, and what no stage measures for itself is not lost.
    """

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._running: list[str] = []
        self._since = 0.0

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count the block's time for a stage, also if it was counted before."""
        self._count()
        self._seconds.setdefault(name, 0.0)
        self._running.append(name)
        try:
            yield
        finally:
            self._count()
            self._running.pop()

    def milliseconds(self) -> dict[str, float]:
        """Time of each stage so far, those that are running included, to a tenth of a ms."""
        self._count()
        return {name: round(seconds * 1e3, 1) for name, seconds in self._seconds.items()}

    def _count(self) -> None:
        now = time.perf_counter()
        if self._running:
            self._seconds[self._running[-1]] += now - self._since
        self._since = now
