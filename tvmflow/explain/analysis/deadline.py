"""A deadline for analyses, which may take long for large kernels."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from math import inf

from ..profiling.record import Finding

_UNTIL: ContextVar[float] = ContextVar("until", default=inf)


class OutOfTimeError(Exception):
    """Raised when an analysis reaches its deadline; ``found`` has the findings until then."""

    def __init__(self, found: Sequence[Finding] = ()):
        super().__init__("the time for analyses is over")
        self.found = list(found)


@contextmanager
def stopped_at(until: float) -> Iterator[None]:
    """Set the deadline for :func:`check_time`, in the time of ``time.monotonic``."""
    token = _UNTIL.set(until)
    try:
        yield
    finally:
        _UNTIL.reset(token)


def check_time() -> None:
    """Raise `OutOfTimeError` after the deadline; analyses call this in their loops."""
    if time.monotonic() > _UNTIL.get():
        raise OutOfTimeError
