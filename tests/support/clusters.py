"""Dask clusters on this machine: a scheduler and workers, each a process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

TESTS = Path(__file__).parents[1]
_DASK = "from distributed.cli.dask_{0} import main; main()"


class Cluster:
    """A scheduler, and workers with one thread each, which are restarted when they end."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        file = folder / "scheduler.json"
        self.scheduler = self._start(
            "scheduler", "--host=127.0.0.1", "--port=0", "--no-show", f"--scheduler-file={file}"
        )
        self._wait_for(lambda: file.exists() and file.read_text().endswith("}"))
        self.address = json.loads(file.read_text())["address"]

    def add_worker(self, *options: str, before: str = "", preload: bool = True) -> None:
        """Start a worker, which runs the statements ``before`` first."""
        self._start(
            "worker",
            self.address,
            "--nthreads=1",
            "--host=127.0.0.1",
            "--no-dashboard",
            *(["--preload=support.cluster_faults"] if preload else []),
            *options,
            before=before,
        )

    def _start(self, kind: str, *options: str, before: str = "") -> subprocess.Popen[bytes]:
        with open(self.folder / f"{kind}{len(self._processes)}.log", "wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-c", f"{before}\n{_DASK.format(kind)}", *options],
                env={
                    **os.environ,
                    "PYTHONPATH": str(TESTS),
                    "DASK_TEMPORARY_DIRECTORY": str(self.folder),
                    # Two workers that a candidate ends are enough.
                    "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "1",
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._processes.append(process)
        return process

    def _wait_for(self, condition: Callable[[], bool]) -> None:
        ends = time.monotonic() + 60
        while not condition():
            assert self.scheduler.poll() is None, (self.folder / "scheduler0.log").read_text()
            assert time.monotonic() < ends
            time.sleep(0.05)

    def close(self) -> None:
        """End all processes, and those that they started."""
        for process in reversed(self._processes):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
        for process in self._processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
