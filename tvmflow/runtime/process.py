"""Worker processes that live on from one piece of work to the next, and are replaced when lost.

Starting Python and importing TVM takes seconds, more than a trial: a process does it once.  It
has a session of its own, so that Ctrl-C reaches only the process that tunes, and ends by itself
when that one has gone.

TVM's ``PopenWorker`` cannot do this: its processes get Ctrl-C and take no variables of their
own, a process in the middle of its work outlives us, a lost one is told without its status and
last line, and time runs out by a thread inside of it, which whatever holds Python's lock stops.
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

#: Seconds in which a new process must have imported TVM, on a busy machine.
START_LIMIT_S = 120.0
_INTERRUPTED = "it was interrupted"


class WorkerLostError(Exception):
    """The process ended by itself, was interrupted, or was ended because it took too long."""

    def __init__(self, message: str, timed_out: bool, interrupted: bool = False):
        super().__init__(message)
        self.timed_out = timed_out
        self.interrupted = interrupted


class Worker:
    """One process, started when it is first called, or by :meth:`start`.

    It has the variables of `environment`, beside those of this process.
    """

    def __init__(self, environment: dict[str, str] | None = None):
        self._environment = environment or {}
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._interrupted = False
        #: Processes that the system had killed for memory when this one started.
        self._memory_kills: int | None = None
        #: Held while a process starts, which :meth:`interrupt` must find or prevent.
        self._starting = threading.Lock()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the worker)

    def call(self, function: Callable[..., T], *arguments: object, timeout_s: float) -> T:
        """Run a module's function in the process.

        Raises a `WorkerLostError` if the process did not survive it, or did not finish in time; the
        next call starts another one, unless the worker was interrupted.
        """
        self.start()
        return self._exchange(function, arguments, timeout_s)

    def start(self) -> None:
        """Start the process now, unless it is there, and wait until it is ready.

        Raises a `WorkerLostError` if it ends at once, takes longer than `START_LIMIT_S`, or was
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
        """Tell what the process ended with, and its last line."""
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
        """The process, while there is one."""
        return getattr(self._process, "pid", None)

    def stop(self) -> None:
        """End the process, also in the middle of its work."""
        if self._connection is not None:
            self._connection.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._process = self._connection = None

    def interrupt(self) -> None:
        """End the process from another thread, whose call then fails, as all later ones do."""
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
    """Say why a process was killed (``SIGKILL``), which leaves no last words.

    The numbers are of processes that Linux had killed because memory ran out, when this one
    started and when it had gone; ``None`` where it does not tell.
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
    """Processes that Linux has killed because memory ran out, since it started."""
    with suppress(OSError, ValueError, KeyError):
        lines = Path("/proc/vmstat").read_text(encoding="ascii").splitlines()
        return int(dict(line.split() for line in lines)["oom_kill"])
    return None


class Pool:
    """Workers that share a queue of work; each is a thread here that waits for a process.

    All processes start at once, as that takes longer than most of the work; `environment` as of
    `Worker`.
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
        """Ids of the processes that there are now."""
        return tuple(pid for worker in self._workers if (pid := worker.pid) is not None)

    def close(self) -> None:
        """Drop what is queued and end the processes."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for worker in self._workers:
            # Not stopped: what belongs to a call is its thread's until it ends.
            worker.interrupt()
        self._threads.shutdown()
        for worker in self._workers:
            worker.close()


def _ready() -> None:
    """Called first: by then the process has imported TVM."""


def _end_with_parent() -> None:
    """Leave when the process that started this one has gone, whatever is running."""
    parent = os.getppid()
    pause = threading.Event()
    while not pause.wait(1):
        if os.getppid() != parent:
            os._exit(1)


def _serve(connection: Connection) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    import_module("tvm")
    # Until the process that started this one closes its end.
    with suppress(EOFError):
        while True:
            module, name, arguments = connection.recv()
            failure, result = None, None
            try:
                result = getattr(import_module(module), name)(*arguments)
            except Exception as error:  # noqa: BLE001 (told to the caller)
                failure = RuntimeError(f"{type(error).__name__}: {error}")
            connection.send((failure, result))


if __name__ == "__main__":
    # Imported again under its own name: functions of this file are found there.
    import_module("tvmflow.runtime.process")._serve(Connection(int(sys.argv[1])))
