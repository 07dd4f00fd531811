"""Trackers and servers on this machine, as separate processes."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from tvmflow.farm.connect import open_session
from tvmflow.runtime.secret import Address, Secret
from tvmflow.runtime.tracker import Server, Tracker

T = TypeVar("T")
LOCAL = "127.0.0.1"
#: TVM's own server.
STOCK = "tvm.exec.rpc_server"
#: A server with faults.
FAULTY = str(Path(__file__).with_name("faulty_server.py"))
#: Longer than anything takes on a slow, busy machine, shorter than the limit of a test.
PATIENCE_S = 400.0
#: Ports below those that a system assigns to connections and to port 0.
_PORTS = range(12000, 32000)


def free_port() -> int:
    """Return a free port that nothing else gets by chance before it is opened."""
    choice = random.SystemRandom()
    while True:
        port = choice.choice(_PORTS)
        with suppress(OSError), socket.create_server((LOCAL, port)):
            return port


@contextmanager
def closed_port() -> Iterator[int]:
    """Hold a port of this machine on which nothing listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def eventually(look: Callable[[], T], limit_s: float = PATIENCE_S) -> T:
    """Return the first true result of `look`."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if found := look():
            return found
        time.sleep(0.1)
    raise AssertionError("what was waited for did not happen")


class Farm:
    """A tracker, and servers that are added to it.

    Parameters
    ----------
    folder
        Folder for logs.
    secret
        Secret that the tracker and its servers require.
    """

    def __init__(self, folder: Path, secret: Secret | None = None):
        self._folder = folder
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self.address = Address(LOCAL, free_port(), secret)
        self._secret = [] if secret is None else ["--secret-file", str(secret.file)]
        self._start(*("-m", "tvmflow", "farm", "tracker", *self._secret), port=self.address.port)
        eventually(self._tracks)

    def serve(self, key: str, *program: str, **environment: str) -> Address:
        """Start a server, by default `tvmflow farm serve`, and wait until it is registered."""
        address = self.start_server(key, *program, **environment)
        eventually(lambda: self.server(address))
        return address

    def start_server(self, key: str, *program: str, **environment: str) -> Address:
        """Start a server without waiting for it."""
        program = program or ("-m", "tvmflow", "farm", "serve")
        options = ["--tracker", str(self.address), "--key", key]
        address = Address(LOCAL, free_port(), self.address.secret)
        if program[-1] == STOCK:
            options += ["--host", LOCAL, "--port-end", str(address.port + 1)]
        else:
            options += self._secret
        self._start(*program, *options, port=address.port, environment=environment)
        return address

    def session(self, key: str) -> tuple[Address, Any]:
        """Open a session on a server of a key, which is busy until the session is dropped."""
        with Tracker(self.address) as tracker:
            tracker.request(key)
            offer = tracker.offer(PATIENCE_S)
            assert offer is not None
        return offer.address, open_session(offer, PATIENCE_S)

    def server(self, address: Address) -> Server | None:
        """Return the tracker's entry of a server."""
        with Tracker(self.address) as tracker:
            servers = tracker.summary().servers
        return next((server for server in servers if server.address == address), None)

    def processes_of(self, address: Address) -> list[int]:
        """Return a server's processes, the first one first."""
        import psutil

        first = psutil.Process(self._processes[address.port].pid)
        return [process.pid for process in (first, *first.children(recursive=True))]

    def send(self, address: Address, number: signal.Signals) -> None:
        """Send all processes of a server a signal."""
        for pid in self.processes_of(address):
            # Some processes end with others.
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def end(self, address: Address) -> None:
        """Kill a server, or the tracker."""
        import psutil

        process = self._processes[address.port]
        for child in psutil.Process(process.pid).children(recursive=True):
            child.kill()
        process.kill()
        process.wait()

    def stop(self, address: Address) -> int:
        """Press Ctrl-C for a server; return its exit status."""
        process = self._processes[address.port]
        process.send_signal(signal.SIGINT)
        return process.wait(PATIENCE_S)

    def log(self, address: Address) -> str:
        return (self._folder / f"{address.port}.log").read_text()

    def close(self) -> None:
        """End everything."""
        for port, process in self._processes.items():
            if process.poll() is None:
                self.end(Address(LOCAL, port))

    def _start(self, *command: str, port: int, environment: dict[str, str] | None = None) -> None:
        with open(self._folder / f"{port}.log", "wb") as log:
            self._processes[port] = subprocess.Popen(
                [sys.executable, *command, "--port", str(port)],
                stdout=log,
                stderr=log,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
            )

    def _tracks(self) -> bool:
        try:
            Tracker(self.address).close()
        except Exception:  # noqa: BLE001 (not yet)
            return False
        return True
