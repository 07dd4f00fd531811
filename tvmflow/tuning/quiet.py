"""Quiet while a kernel is timed on the CPUs that builds and searches run on, too."""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Quiet:
    """What has to hold still.

    Parameters
    ----------
    lock
        A file; whoever computes in the tuning process itself holds a lock on it.
    processes
        Ids of build processes, which are stopped and continued.
    """

    lock: Path
    processes: tuple[int, ...]

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Stop everything; called in the measuring process, a sibling of those."""
        # A process may have ended, and its number be another's by now.
        siblings = [pid for pid in self.processes if _parent_of(pid) == os.getppid()]
        with busy(self.lock):
            _signal(siblings, signal.SIGSTOP)
            try:
                yield
            finally:
                _signal(siblings, signal.SIGCONT)

    def end(self) -> None:
        """Let all go on; called in the tuning process when the measuring one was lost."""
        _signal([p for p in self.processes if _parent_of(p) == os.getpid()], signal.SIGCONT)


@contextmanager
def busy(lock: Path) -> Iterator[None]:
    """Compute, or measure, while nobody else does who asks."""
    with open(lock, "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _signal(processes: Sequence[int], number: signal.Signals) -> None:
    for pid in processes:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _parent_of(pid: int) -> int | None:
    try:
        # The name in parentheses may hold anything.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return int(fields[1])
