"""Prepare modules for forks: locks are free in the child, and lost devices are refused.

A child has the memory of the process that it was forked from, but of its threads only the one that
forked.  A lock that another thread held would never be released there.
"""

from __future__ import annotations

import os
import threading
import time
import weakref

from ..errors import DeviceError

#: How long a fork waits for runs under way; what runs longer cannot be used in the child.
LIMIT_S = 10.0

_locks: weakref.WeakSet[RunLock] = weakref.WeakSet()
#: Held while the process forks: runs that follow each other at once would leave no gap for it.
_gate = threading.RLock()
_forking = False
#: Locks that were acquired for the fork.
_held: list[RunLock] = []
#: Kinds of devices whose driver this process uses, and kinds whose driver's threads it lacks.
_used: set[str] = set()
_lost: set[str] = set()


class RunLock:
    """Lock of a module that is held during a run, and is free in a forked child.

    The process forks between runs, so that what a run changes, in TVM too, is whole in the child.
    Entering it raises a `DeviceError` in a child that was forked during a run that took longer than
    `LIMIT_S`.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._is_torn = False
        _locks.add(self)

    def __enter__(self) -> None:
        # Not for ever: the fork may wait for what this thread holds.
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

    def _acquire_before_fork(self, limit_s: float) -> bool:
        return self._lock.acquire(timeout=max(limit_s, 0.0))

    def _give_up(self) -> None:
        self._lock = threading.RLock()
        self._is_torn = True


def use(kind: str, attempt: str) -> None:
    """As `note`, for ``opencl`` or ``cuda``, unless this process cannot.

    Raises
    ------
    DeviceError
        If a process that this one was forked from has used it: the driver's threads are missing
        here, and the first wait would never end.  ``attempt`` begins the sentence.
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
    """Tell whether a process that this one was forked from has used such a driver."""
    return kind in _lost


def _before() -> None:
    global _forking
    _gate.acquire()
    _forking = True
    end = time.monotonic() + LIMIT_S
    _held.extend(lock for lock in list(_locks) if lock._acquire_before_fork(end - time.monotonic()))


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
            lock._give_up()
    _lost.update(_used)
    _release()


os.register_at_fork(before=_before, after_in_parent=_release, after_in_child=_in_child)
