"""Work in several threads at once."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier


def in_threads(count: int, work: Callable[[int], object]) -> None:
    """Call a function with each thread's number, in threads that begin together.

    Raises the exception of a thread.
    """
    barrier = Barrier(count)

    def begin(number: int) -> None:
        barrier.wait()
        work(number)

    with ThreadPoolExecutor(count) as pool:
        list(pool.map(begin, range(count)))
