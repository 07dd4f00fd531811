"""Times of the stages of a compilation."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class StageTimes:
    """Wall time by stage, in the order in which stages began.

    Stages nest: the clock of the outer stage stops while an inner one runs, so the times add up to
    the total.
    """

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._running: list[str] = []
        self._since = 0.0

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the block's time to a stage."""
        self._count()
        self._seconds.setdefault(name, 0.0)
        self._running.append(name)
        try:
            yield
        finally:
            self._count()
            self._running.pop()

    def milliseconds(self) -> dict[str, float]:
        """Return the time of each stage so far, running ones included, to a tenth of a ms."""
        self._count()
        return {name: round(seconds * 1e3, 1) for name, seconds in self._seconds.items()}

    def _count(self) -> None:
        now = time.perf_counter()
        if self._running:
            self._seconds[self._running[-1]] += now - self._since
        self._since = now
