"""Ways to reach an agent: a process of this machine, ssh, TCP."""

from __future__ import annotations

import functools
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from ..devices.host import Host
from ..errors import AgentError
from ..module.standalone.binding import opencl_libraries
from ..runtime.caches import user_cache
from ..runtime.secret import Address, BusyError, UnprovenError
from .executable import agent_build, agent_executable, check_agent_host

#: Time limit of connecting, and of short commands there.
CONNECT_S = 30.0
#: Time limit of sending the agent.
SEND_S = 120.0
#: Time that a command has to end after its standard input.
END_S = 5.0
#: Longest text of standard error that is kept for messages.
_TAIL_BYTES = 4096


class Stream(ABC):
    """Bytes to an agent and back."""

    @abstractmethod
    def read(self, count: int) -> bytes:
        """Return this many bytes; fewer when the stream has ended."""

    @abstractmethod
    def receive(self, most: int) -> bytes:
        """Return the next bytes as soon as there are some, at most so many; none at the end."""

    @abstractmethod
    def write(self, content: bytes) -> None:
        """Send bytes; raise `OSError` if the stream has ended."""

    @abstractmethod
    def close(self) -> None:
        """End the stream, and with it the agent."""

    def trouble(self) -> str:
        """Return what is known about why the stream has ended; may be empty."""
        return ""


class ProcessStream(Stream):
    """Standard input and output of a command, whose standard error is kept for messages."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str] | None = None):
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the stream)
        self._is_closed = False
        self._process = subprocess.Popen(
            command,
            # Without buffers, whose locks a thread that waits in them would hold during `close`.
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**os.environ, **(environment or {})},
            # Ctrl-C is for this process, which cancels the request.
            start_new_session=True,
        )

    def read(self, count: int) -> bytes:
        """Return bytes of standard output."""
        found = bytearray()
        while len(found) < count and (piece := self.receive(count - len(found))):
            found += piece
        return bytes(found)

    def receive(self, most: int) -> bytes:
        """Return the next bytes of standard output."""
        assert self._process.stdout is not None
        # Never `None`: the pipe blocks.
        return self._process.stdout.read(most) or b""

    def write(self, content: bytes) -> None:
        """Send bytes to standard input."""
        assert self._process.stdin is not None
        left = memoryview(content)
        while left:
            left = left[self._process.stdin.write(left) :]

    def close(self) -> None:
        """Close standard input, and end the command if that does not end it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._is_closed = True
        with suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        with suppress(OSError):
            self._process.stdout.close()

    def trouble(self) -> str:
        """Return the end of standard error, and the exit status if the command ended by itself."""
        status: int | None = None
        if not self._is_closed:
            with suppress(subprocess.TimeoutExpired):
                status = self._process.wait(1.0)
        end = "" if status is None else f"its command ended with status {status}"
        if status is not None and status < 0:
            end = f"its command was ended by {signal_text(-status)}"
        said = _tail(self._log.fileno())
        return "; ".join(filter(None, (said, end)))


def _tail(file: int) -> str:
    """Return the end of a file, whose position a command may be writing at."""
    size = os.fstat(file).st_size
    content = os.pread(file, _TAIL_BYTES, max(0, size - _TAIL_BYTES))
    return content.decode(errors="replace").strip()


def signal_text(number: int) -> str:
    """Return a signal's number and name: ``signal 11 (SIGSEGV)``."""
    with suppress(ValueError):
        return f"signal {number} ({signal.Signals(number).name})"
    return f"signal {number}"


class SocketStream(Stream):
    """A TCP connection."""

    def __init__(self, connection: socket.socket):
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection, self._file = connection, connection.makefile("rb")

    def read(self, count: int) -> bytes:
        """Receive bytes."""
        return self._file.read(count)

    def receive(self, most: int) -> bytes:
        """Receive the next bytes."""
        return self._file.read1(most)

    def write(self, content: bytes) -> None:
        """Send bytes."""
        self._connection.sendall(content)

    def close(self) -> None:
        """Close the connection."""
        with suppress(OSError):
            # A reader in another thread ends, too.
            self._connection.shutdown(socket.SHUT_RDWR)
        self._file.close()
        self._connection.close()


class Transport(ABC):
    """A way to reach one device."""

    #: The text of ``--on``.
    name: str

    @abstractmethod
    def start(self) -> Stream:
        """Start an agent there, after it was sent if it is not there in this version.

        Raises `AgentError` for each obstacle, with its remedy.
        """

    @abstractmethod
    def clean(self) -> str:
        """Remove what agents have left on the device; return its folder's name."""

    def lost(self) -> str:
        """Return what is known about a connection that has broken; may be empty."""
        return ""


class Local(Transport):
    """A process of this machine."""

    name = "local"

    def __init__(self, environment: Mapping[str, str] | None = None):
        self.folder = Path(os.environ.get("TVMFLOW_CACHE_DIR") or user_cache()) / "agent"
        self._environment = dict(environment or {})

    def start(self) -> Stream:
        """Start the agent, with the OpenCL library that modules of this process use."""
        executable = agent_executable(Host.native())
        environment = {"POCL_WORK_GROUP_SPECIALIZATION": "0", **self._environment}
        found = [library for library in opencl_libraries() if library is not None]
        if found and not _has_loader():
            environment.setdefault("TVMFLOW_OPENCL_LIBRARY", found[0])
        return ProcessStream([str(executable), "--folder", str(self.folder)], environment)

    def clean(self) -> str:
        """Remove the agent's folder."""
        shutil.rmtree(self.folder, ignore_errors=True)
        return str(self.folder)


#: Exits with status 0 if the system has an OpenCL loader with a driver.
_ASK_LOADER = """
import ctypes
count = ctypes.c_uint32()
ctypes.CDLL("libOpenCL.so.1").clGetPlatformIDs(0, None, ctypes.byref(count))
raise SystemExit(count.value == 0)
"""


@functools.cache
def _has_loader() -> bool:
    """Return whether the system has an OpenCL loader with a driver."""
    # In another process: after drivers are loaded, children of this one could not use them.
    command = [sys.executable, "-S", "-c", _ASK_LOADER]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


class Ssh(Transport):
    """A board with Linux, by the user's own ssh and its configuration."""

    #: Relative to the user's home there.
    FOLDER = ".cache/tvmflow-agent"

    def __init__(self, destination: str):
        self.name, self._destination = f"ssh:{destination}", destination
        command = shutil.which("ssh")
        if command is None:
            raise AgentError(
                f"Reaching {self.name} failed: the program ssh was not found.",
                remedy="Install it, such as Debian's openssh-client.",
            )
        # In batch mode ssh fails where it would ask for a password, which nobody could answer.
        limits = ("-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_S:.0f}")
        self._ssh = (command, "-T", *limits, "-o", "ServerAliveInterval=10", destination)

    def start(self) -> Stream:
        """Send the agent if it is not there, and start it."""
        host = self.host()
        check_agent_host(host)
        agent = f"{self.FOLDER}/agent-{agent_build()}"
        if not self._run(f"test -x {agent} && echo there || true", "Looking for the agent"):
            self._send(agent_executable(host), agent)
        return ProcessStream([*self._ssh, "exec", agent, "--folder", f"$HOME/{self.FOLDER}"])

    def host(self) -> Host:
        """Return the machine there."""
        system, machine, *_ = *self._run("uname -s -m", "Asking for the system").split(), "", ""
        if system != "Linux":
            raise AgentError(
                f"Using {self.name} failed: its system is {system or 'unknown'}, Linux was "
                "expected.",
                remedy="Use a board with Linux, or a phone by adb.",
            )
        return Host.parse(f"{machine}-linux-gnu")

    def clean(self) -> str:
        """Remove the agent's folder."""
        self._run(f"rm -rf {self.FOLDER}", "Removing the agent's folder")
        return f"~/{self.FOLDER}"

    def _send(self, executable: Path, agent: str) -> None:
        # Another process may send the agent at the same time, under another name.
        new = f"{agent}.{secrets.token_hex(4)}"
        # Older versions are removed.  It gets its name when it has run: otherwise the next start
        # would take it as usable.  A part of a file would keep a full disk full.
        command = (
            f"mkdir -p -m 700 {self.FOLDER} && rm -f {self.FOLDER}/agent-* && cat > {new} && "
            f"chmod 700 {new} && {new} --help > /dev/null && mv {new} {agent} || rm -f {new} && "
            f"test -x {agent}"
        )
        self._run(command, "Sending the agent", executable.read_bytes(), SEND_S)

    def _run(
        self, command: str, attempt: str, content: bytes = b"", limit_s: float = CONNECT_S + 10
    ) -> str:
        try:
            done = subprocess.run(
                [*self._ssh, command],
                input=content,
                capture_output=True,
                check=False,
                timeout=limit_s,
            )
        except subprocess.TimeoutExpired:
            raise AgentError(
                f"{attempt} on {self.name} failed: no answer within {limit_s:.0f} s.",
                remedy=f"Try it by hand: ssh {self._destination} true",
            ) from None
        if done.returncode:
            # The last line has the reason; banners come before.
            said = done.stderr.decode(errors="replace").strip().splitlines() or [""]
            reason = said[-1].rstrip(".") or f"ssh ended with status {done.returncode}"
            raise AgentError(
                f"{attempt} on {self.name} failed: {reason}.",
                remedy=f"Try it by hand: ssh -o BatchMode=yes {self._destination} true",
                details="\n".join(said[:-1]) or None,
            )
        return done.stdout.decode(errors="replace").strip()


def connect_to(address: Address, what: str, *, if_unproven: str, if_away: str) -> socket.socket:
    """Connect to an agent or a server, and prove the secret if there is one.

    Raises `AgentError`, with a remedy if the secret is another one, or if nothing is there.
    """
    try:
        return address.connect(CONNECT_S)
    except (UnprovenError, BusyError) as error:
        message = f"The {what} at {address} was not used: {error}."
        raise AgentError(message, remedy=if_unproven) from error
    except OSError as error:
        raise away(address, what, error, if_away) from error


def away(address: Address, what: str, error: OSError, remedy: str) -> AgentError:
    """Return the error that an agent or a server cannot be reached."""
    message = f"The {what} at {address} cannot be reached: {error.strerror or error}."
    return AgentError(message, remedy=remedy)


class Tcp(Transport):
    """An agent that listens at an address."""

    def __init__(self, address: Address):
        self.name, self._address = f"tcp:{address}", address

    def start(self) -> Stream:
        """Connect, and prove the secret if there is one."""
        connection = connect_to(
            self._address,
            "agent",
            if_unproven="Give the file that it was started with (`secret_file`), if any.",
            if_away="Start it there, as docs/phones.md shows.",
        )
        return SocketStream(connection)

    def clean(self) -> str:
        """Raise `AgentError`: such an agent belongs to whoever started it."""
        raise AgentError(
            f"Removing the agent's folder of {self.name} is not possible: it was started there.",
            remedy="Remove the folder there.",
        )
