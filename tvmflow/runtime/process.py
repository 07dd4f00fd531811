"""Worker processes that are reused for many calls, and replaced when lost.

Starting Python and importing TVM takes seconds, longer than a trial, so a process does it once.
It runs in its own session, so that Ctrl-C reaches only the parent, and ends when the parent ends.

TVM's ``PopenWorker`` is not used: its processes receive Ctrl-C, take no environment variables,
outlive the parent in the middle of a call, report neither status nor last output when lost, and
enforce time limits by a thread inside, which stops while Python's lock is held.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

#: Time limit for a new process to import TVM, on a busy machine.
START_LIMIT_S = 120.0
_INTERRUPTED = "it was interrupted"


class WorkerLostError(Exception):
    """Raised if the process ended, was interrupted, or was ended after its time limit."""

    def __init__(self, message: str, timed_out: bool, interrupted: bool = False):
        super().__init__(message)
        self.timed_out = timed_out
        self.interrupted = interrupted


class Worker:
    """One process, started when it is first called, or by :meth:`start`.

    `environment` is added to this process's environment variables.
    """

    def __init__(self, environment: dict[str, str] | None = None):
        self._environment = environment or {}
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._interrupted = False
        #: Number of processes that the system had killed for memory when this one started.
        self._memory_kills: int | None = None
        #: Held while a process starts: :meth:`interrupt` must find or prevent it.
        self._starting = threading.Lock()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the worker)

    def call(self, function: Callable[..., T], *arguments: object, timeout_s: float) -> T:
        """Call a module-level function in the process.

        Raises `WorkerLostError` if the process ended or did not finish in time; the next call
        starts another process, unless the worker was interrupted.
        """
        self.start()
        return self._exchange(function, arguments, timeout_s)

    def start(self) -> None:
        """Start the process if there is none, and wait until it is ready.

        Raises `WorkerLostError` if it ends at once, takes longer than `START_LIMIT_S`, or was
        interrupted.
        """
        if self._process is not None:
            return
        with self._starting:
            if self._interrupted:
                raise WorkerLostError(_INTERRUPTED, timed_out=False, interrupted=True)
            self._memory_kills = _memory_kills()
            ours, theirs = socket.socketpair()
            with theirs:
                self._log.seek(0)
                self._log.truncate()
                self._process = subprocess.Popen(
                    [sys.executable, "-m", __name__, str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=self._log,
                    stderr=self._log,
                    env={**os.environ, **self._environment},
                    start_new_session=True,
                )
            self._connection = Connection(ours.detach())
        self._exchange(_ready, (), START_LIMIT_S)

    def _exchange(
        self, function: Callable[..., T], arguments: tuple[object, ...], limit_s: float
    ) -> T:
        connection = self._connection
        assert connection is not None
        try:
            connection.send((function.__module__, function.__qualname__, arguments))
            if not connection.poll(limit_s):
                self.stop()
                raise WorkerLostError(f"it took more than {limit_s:g} s", timed_out=True)
            failure, result = connection.recv()
        except (EOFError, OSError) as error:
            said = self._obituary()
            if self._interrupted:
                raise WorkerLostError(_INTERRUPTED, timed_out=False, interrupted=True) from error
            raise WorkerLostError(said, timed_out=False) from error
        if failure is not None:
            raise failure
        return result

    def _obituary(self) -> str:
        """Return how the process ended, and its last line of output."""
        assert self._process is not None
        status = self._process.wait()
        self.stop()
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").split("\n")
        said = next((line.strip() for line in reversed(lines) if line.strip()), "")
        if status == -signal.SIGKILL:
            return killed_text(self._memory_kills, _memory_kills())
        how = f"status {status}" if status >= 0 else signal.Signals(-status).name
        return f"the process ended with {how}" + (f": {said[:200]}" if said else "")

    @property
    def pid(self) -> int | None:
        """Return the id of the process; ``None`` if there is none."""
        return getattr(self._process, "pid", None)

    def stop(self) -> None:
        """End the process, even during a call."""
        if self._connection is not None:
            self._connection.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._process = self._connection = None

    def interrupt(self) -> None:
        """End the process from another thread; the current and all later calls fail."""
        with self._starting:
            self._interrupted = True
            process = self._process
        if process is not None:
            process.kill()

    def close(self) -> None:
        """End the process for good."""
        self.stop()
        self._log.close()


def killed_text(before: int | None, after: int | None) -> str:
    """Explain why a process was killed (``SIGKILL``), which leaves no output.

    ``before`` and ``after`` count the processes that Linux had killed for memory when this one
    started and ended; ``None`` if unknown.
    """
    if before is not None and after is not None and after > before:
        why = "the system killed one for memory meanwhile"
    else:
        why = "most likely by the system or a container's limit, because memory ran out"
    return (
        f"the process was killed (SIGKILL), {why}; give the machine or the container more memory, "
        "or run less beside it"
    )


def _memory_kills() -> int | None:
    """Return how many processes Linux has killed for memory since it started."""
    with suppress(OSError, ValueError, KeyError):
        lines = Path("/proc/vmstat").read_text(encoding="ascii").splitlines()
        return int(dict(line.split() for line in lines)["oom_kill"])
    return None


class Pool:
    """Workers that share a queue of calls; each has a thread that waits for its process.

    All processes start at once, since starting takes longer than most calls; `environment` is
    passed to `Worker`.
    """

    def __init__(self, count: int, environment: dict[str, str] | None = None):
        self._environment = environment
        self._own = threading.local()
        self._workers: list[Worker] = []
        self._threads = ThreadPoolExecutor(count, "tvmflow-worker", self._adopt)
        for _ in range(count):
            self.submit(_ready, timeout_s=START_LIMIT_S)

    def _adopt(self) -> None:
        self._own.worker = Worker(self._environment)
        self._workers.append(self._own.worker)

    def submit(self, function: Callable[..., T], *arguments: object, timeout_s: float) -> Future[T]:
        """Queue a call; its future fails as :meth:`Worker.call` does."""
        return self._threads.submit(
            lambda: self._own.worker.call(function, *arguments, timeout_s=timeout_s)
        )

    @property
    def processes(self) -> tuple[int, ...]:
        """Return the ids of the current processes."""
        return tuple(pid for worker in self._workers if (pid := worker.pid) is not None)

    def close(self) -> None:
        """Drop queued calls and end the processes."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for worker in self._workers:
            # Interrupted and not stopped: a worker's state belongs to its thread during a call.
            worker.interrupt()
        self._threads.shutdown()
        for worker in self._workers:
            worker.close()


def _ready() -> None:
    """Do nothing; the first call, which returns after TVM was imported."""


def _end_with_parent() -> None:
    """End this process when its parent has ended, even during a call."""
    parent = os.getppid()
    pause = threading.Event()
    while not pause.wait(1):
        if os.getppid() != parent:
            os._exit(1)


def _serve(connection: Connection) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    import_module("tvm")
    # Serve until the parent closes its end.
    with suppress(EOFError):
        while True:
            module, name, arguments = connection.recv()
            failure, result = None, None
            try:
                result = getattr(import_module(module), name)(*arguments)
            except Exception as error:  # noqa: BLE001 (reported to the caller)
                failure = RuntimeError(f"{type(error).__name__}: {error}")
            connection.send((failure, result))


if __name__ == "__main__":
    # Imported again under its own name, so that functions of this file are found.
    import_module("tvmflow.runtime.process")._serve(Connection(int(sys.argv[1])))
