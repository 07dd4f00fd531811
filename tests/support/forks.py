"""Scripts in separate processes that have TVM imported already."""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path


class _ForkServer:
    """A process that imported TVM, and from which the scripts' processes are forked.

    Parameters
    ----------
    folder
        Folder for its socket.
    """

    def __init__(self, folder: Path):
        self._socket = folder / "socket"
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("fork_server.py")), str(self._socket)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout
        assert self._process.stdout.readline() == b"ready\n"

    def run(
        self, command: Sequence[str], env: Mapping[str, str], timeout: float
    ) -> subprocess.CompletedProcess[str]:
        """Run a script with arguments, as ``subprocess.run`` does."""
        with (
            tempfile.NamedTemporaryFile("r") as stdout,
            tempfile.NamedTemporaryFile("r") as stderr,
            socket.socket(socket.AF_UNIX) as connection,
        ):
            connection.settimeout(timeout)
            connection.connect(os.fspath(self._socket))
            request = {"command": list(command), "env": dict(env)}
            request |= {"stdout": stdout.name, "stderr": stderr.name}
            with connection.makefile("rw") as stream:
                print(json.dumps(request), file=stream, flush=True)
                child = int(stream.readline())
                try:
                    status = int(stream.readline())
                except TimeoutError:
                    os.kill(child, signal.SIGKILL)
                    raise
            return subprocess.CompletedProcess(command, status, stdout.read(), stderr.read())

    def close(self) -> None:
        """End the server."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


@cache
def _server() -> _ForkServer:
    folder = tempfile.TemporaryDirectory(prefix="tvmflow-forks-")
    atexit.register(folder.cleanup)
    server = _ForkServer(Path(folder.name))
    atexit.register(server.close)
    return server


def run_forked(
    command: Sequence[str], env: Mapping[str, str], timeout: float = 600
) -> subprocess.CompletedProcess[str]:
    """Run a script with arguments in a process with this environment, which has imported TVM."""
    return _server().run(command, env, timeout)


def run_command(
    arguments: Sequence[str], env: Mapping[str, str], timeout: float
) -> subprocess.CompletedProcess[str]:
    """Run the command ``tvmflow`` in such a process."""
    command = str(Path(__file__).with_name("patient_command.py"))
    return run_forked([command, *arguments], env, timeout)
