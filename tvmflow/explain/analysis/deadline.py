"""A time at which analyses stop, wherever they are: large kernels may take long."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from math import inf

from ..profiling.record import Finding

_UNTIL: ContextVar[float] = ContextVar("until", default=inf)


class OutOfTimeError(Exception):
    """An analysis that was stopped; ``found`` is what it had by then."""

    def __init__(self, found: Sequence[Finding] = ()):
        super().__init__("the time for analyses is over")
        self.found = list(found)


@contextmanager
def stopped_at(until: float) -> Iterator[None]:
    """Let :func:`check_time` raise from a time on, of ``time.monotonic``."""
    token = _UNTIL.set(until)
    try:
        yield
    finally:
        _UNTIL.reset(token)


def check_time() -> None:
    """Raise `OutOfTimeError` if the time is over; called wherever an analysis goes on."""
    if time.monotonic() > _UNTIL.get():
        raise OutOfTimeError
