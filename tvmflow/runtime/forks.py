"""Fork safety of modules: locks are free in the child, and devices of the parent are refused.

A forked child has the memory of its parent, but only the thread that forked.  A lock that another
thread held would never be released.
"""

from __future__ import annotations

import os
import threading
import time
import weakref

from ..errors import DeviceError

#: How long a fork waits for runs; a module in a longer run cannot be used in the child.
LIMIT_S = 10.0

_locks: weakref.WeakSet[RunLock] = weakref.WeakSet()
#: Held while the process forks, or back-to-back runs would leave no gap for the fork.
_gate = threading.RLock()
_forking = False
#: Locks that were acquired for the fork.
_held: list[RunLock] = []
#: Kinds of devices that this process uses, and kinds whose driver threads it lost by a fork.
_used: set[str] = set()
_lost: set[str] = set()


class RunLock:
    """Lock of a module that is held during a run, and is free in a forked child.

    The process forks between runs, so that the state of runs, also in TVM, is consistent in the
    child.  Entering the lock raises `DeviceError` in a child that was forked during a run of more
    than `LIMIT_S`.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._is_torn = False
        _locks.add(self)

    def __enter__(self) -> None:
        # With a limit: the fork may wait for a lock that this thread holds.
        if _forking and _gate.acquire(timeout=1.0):
            _gate.release()
        if self._is_torn:
            raise DeviceError(
                "Another thread was in a run of this module when the process was forked.",
                remedy="Load the module again in the child.",
            )
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def use(kind: str, attempt: str) -> None:
    """Note that this process uses the driver for ``opencl`` or ``cuda``, if it can.

    Raises `DeviceError`, begun by ``attempt``, if a parent of this forked process has used the
    driver: its threads are missing here, and the first wait would never end.
    """
    if is_lost(kind):
        device = {"opencl": "an OpenCL", "cuda": "a CUDA"}[kind]
        raise DeviceError(
            f"{attempt} failed: {device} device was used in a process forked from one that had "
            "used it.",
            remedy="Start worker processes with multiprocessing's 'spawn' method.",
        )
    note(kind)


def note(kind: str) -> None:
    """Note that this process uses the driver of a kind of devices."""
    _used.add(kind)


def is_lost(kind: str) -> bool:
    """Return whether a parent of this forked process has used the driver of a kind."""
    return kind in _lost


def _before() -> None:
    global _forking
    _gate.acquire()
    _forking = True
    end = time.monotonic() + LIMIT_S
    _held.extend(
        lock
        for lock in list(_locks)
        if lock._lock.acquire(timeout=max(end - time.monotonic(), 0.0))
    )


def _release() -> None:
    global _forking
    while _held:
        _held.pop()._lock.release()
    _forking = False
    _gate.release()


def _in_child() -> None:
    held = set(map(id, _held))
    for lock in list(_locks):
        if id(lock) not in held:
            lock._lock, lock._is_torn = threading.RLock(), True
    _lost.update(_used)
    _release()


os.register_at_fork(before=_before, after_in_parent=_release, after_in_child=_in_child)
