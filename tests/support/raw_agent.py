"""The agent under the sanitizers, and a client that may break its protocol."""

from __future__ import annotations

import hashlib
import os
import select
import socket
import struct
import subprocess
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from support.build_cache import cached_build
from support.fake_opencl import FLAGS, ROOT, SOURCES, compile_c

NATIVE = ROOT / "native"
TESTS = ROOT / "tests" / "agent"
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
#: Crashes end the process by their signal; findings of the sanitizers exit with status 99.
ASAN_OPTIONS = "handle_segv=0:handle_sigbus=0:exitcode=99:allocator_may_return_null=1"

(HELLO, PING, SENSORS, HAVE, PUT, CANCEL, RESET) = range(1, 8)
(FACTS, OPEN, CLOSE, RUN, TIME, PROFILE, SELF_TEST, DESCRIBE, BINARIES) = range(16, 25)
(BUILD, ALLOCATE, WRITE, FILL, READ, LAUNCH, FREE) = range(32, 39)
PART, ANSWER, ERROR = 0x4000, 0x8000, 0xFFFF
(PROTOCOL, VERSIONS, BUSY, ARGUMENT, MISSING, STORE, LIBRARY, DEVICE) = range(1, 9)
(MEMORY, LOST, TIMEOUT, CANCELLED) = range(9, 13)


def _built(name: str, output: str, arguments: Sequence[object]) -> Path:
    sources = [Path(a) for a in arguments if str(a).endswith(".c")]
    folders = (NATIVE / "agent", NATIVE / "core", SOURCES)
    headers = [path for folder in folders for path in folder.glob("*.h")]
    folder = cached_build(
        name,
        [os.environ.get("CC", "cc"), *FLAGS, *map(str, arguments)],
        [*sources, *headers],
        lambda fresh: compile_c(fresh / output, *arguments),
    )
    return folder / output


def agent_sources(*left_out: str) -> list[Path]:
    """Return the C files of the agent for this machine."""
    found = sorted([*(NATIVE / "agent").glob("*.c"), *(NATIVE / "core").glob("*.c")])
    return [path for path in found if path.name not in ("start_android.c", *left_out)]


def build_agent() -> Path:
    """Return the agent, compiled with the sanitizers."""
    libraries = ("-ldl", "-lm", "-pthread")
    return _built("agent", "agent", [*SANITIZERS, *agent_sources(), *libraries])


def build_fuzzer() -> Path:
    """Return the program of ``tests/agent/fuzz.c``."""
    sources = [TESTS / "fuzz.c", *agent_sources("main.c")]
    flags = (
        f"-I{NATIVE}",
        "-Wl,--wrap=fork,--wrap=socketpair,--wrap=agent_read_frame",
        "-Wno-shadow",
    )
    return _built("fuzz", "fuzz", [*SANITIZERS, *flags, *sources, "-ldl", "-lm", "-pthread"])


def build_driver(*sanitizers: str) -> Path:
    """Return the fake OpenCL driver with faults (``faulty_driver.c``)."""
    sources = [*sorted(SOURCES.glob("*.c")), TESTS / "faulty_driver.c"]
    flags = ["-shared", f"-I{NATIVE / 'core'}", "-Wl,--wrap=fake_enter", "-pthread"]
    return _built("faulty_driver", "libOpenCL.so", [*sanitizers, *flags, *sources])


@dataclass(frozen=True)
class Answer:
    """A frame of the agent."""

    kind: int
    request: int
    payload: bytes

    @property
    def error(self) -> tuple[int, int, str]:
        """Return code, detail and message of an error."""
        assert self.kind == ERROR, self
        code, detail, length = struct.unpack_from("<III", self.payload)
        return code, detail, self.payload[12 : 12 + length].decode()

    @property
    def u32(self) -> int:
        """Return the first field."""
        assert self.kind != ERROR, self.error
        return struct.unpack_from("<I", self.payload)[0]


def text(value: bytes | str) -> bytes:
    """Return a text field."""
    content = value.encode() if isinstance(value, str) else value
    return struct.pack("<I", len(content)) + content


def u32(*values: int) -> bytes:
    """Return fields of 32 bits."""
    return struct.pack(f"<{len(values)}I", *values)


def u64(*values: int) -> bytes:
    """Return fields of 64 bits."""
    return struct.pack(f"<{len(values)}Q", *values)


def sha256(content: bytes) -> bytes:
    """Return a digest field."""
    return hashlib.sha256(content).digest()


def hello(lowest: int = 1, highest: int = 1, silence_ms: int = 20_000, name: str = "test") -> bytes:
    """Return the fields of ``HELLO``."""
    return u32(lowest, highest, 0, silence_ms) + text(name)


def frame(kind: int, request: int, payload: bytes = b"", limit_ms: int = 0) -> bytes:
    """Return the bytes of a frame."""
    header = struct.pack("<4sHHIII", b"TVMA", kind, 0, request, limit_ms, len(payload))
    return header + u32(zlib.crc32(payload, zlib.crc32(header))) + payload


class Client:
    """A connection; ``stop`` ends it and what belongs to it."""

    def __init__(self, reads: int, writes: int):
        self._reads, self._writes = reads, writes
        self._waiting = b""
        self.number = 0

    def raw(self, content: bytes) -> None:
        """Send bytes."""
        while content:
            content = content[os.write(self._writes, content) :]

    def send(self, kind: int, payload: bytes = b"", number: int = 0, limit_ms: int = 0) -> int:
        """Send a frame, with a new number unless one is given; return the number."""
        if not number:
            self.number += 1
        self.raw(frame(kind, number or self.number, payload, limit_ms))
        return number or self.number

    def bytes(self, count: int, seconds: float = 10) -> bytes:
        """Receive so many bytes, or those before the end."""
        ends = time.monotonic() + seconds
        while len(self._waiting) < count:
            left = ends - time.monotonic()
            assert left > 0, f"{count} bytes were expected; {self._waiting!r} came."
            if select.select([self._reads], [], [], left)[0]:
                try:
                    more = os.read(self._reads, 1 << 20)
                except ConnectionResetError:
                    more = b""
                if not more:
                    break
                self._waiting += more
        found, self._waiting = self._waiting[:count], self._waiting[count:]
        return found

    def receive(self, seconds: float = 10) -> Answer | None:
        """Return the next frame; ``None`` at the connection's end."""
        header = self.bytes(24, seconds)
        if not header:
            return None
        magic, kind, zero, number, limit, count = struct.unpack_from("<4sHHIII", header)
        assert (magic, zero, limit) == (b"TVMA", 0, 0)
        payload = self.bytes(count, seconds)
        assert zlib.crc32(payload, zlib.crc32(header[:20])) == int.from_bytes(header[20:], "little")
        return Answer(kind, number, payload)

    def answer(self, number: int, seconds: float = 10) -> Answer:
        """Return the answer to a request, without its parts."""
        while (found := self.receive(seconds)) is not None:
            if found.request == number and found.kind & ANSWER:
                return found
        raise AssertionError("The connection has ended.")

    def request(self, kind: int, payload: bytes = b"", limit_ms: int = 0) -> Answer:
        """Send a request and return its answer."""
        return self.answer(self.send(kind, payload, limit_ms=limit_ms))

    def greet(self, **fields) -> Answer:
        """Send ``HELLO``."""
        return self.request(HELLO, hello(**fields))

    def put(self, content: bytes) -> Answer:
        """Send a blob."""
        number = self.send(PUT, sha256(content) + u64(len(content)))
        for begin in range(0, len(content), 1 << 18):
            self.send(PUT | PART, content[begin : begin + (1 << 18)], number)
        return self.answer(number)

    def has(self, *contents: bytes) -> list[int]:
        """Return for each content whether its blob is there."""
        digests = b"".join(map(sha256, contents))
        return list(self.request(HAVE, u32(len(contents)) + digests).payload)


class Agent(Client):
    """An agent of this machine on pipes."""

    def __init__(self, program: Path, folder: Path, *options: object, log: Path, **env: object):
        words = [program, "--folder", folder, *options]
        self.folder, self.log = folder, log
        with open(log, "wb") as errors:
            self.process = subprocess.Popen(
                list(map(str, words)),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                bufsize=0,
                env=environment(**env),
            )
        super().__init__(self.process.stdout.fileno(), self.process.stdin.fileno())

    @property
    def sessions(self) -> list[int]:
        """Return the processes of sessions."""
        return children(self.process.pid)

    def end(self, seconds: float = 10) -> int:
        """Close the connection, and return the exit status."""
        self.process.stdin.close()
        self.process.stdout.close()
        return self.process.wait(seconds)

    def stop(self) -> None:
        """End the agent, and check that the sanitizers have found nothing."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            stream.close()
        check_log(self.log)


class Listener:
    """An agent that listens on TCP."""

    def __init__(self, program: Path, folder: Path, *options: object, **env: object):
        words = [program, "--folder", folder, "--listen", "127.0.0.1:0", *options]
        self.log = folder.with_name(f"{folder.name}.log")
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                list(map(str, words)),
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment(**env),
            )
        said = self.process.stdout.readline()
        assert said.startswith("listening at 127.0.0.1:"), (said, self.log.read_text())
        self.address = ("127.0.0.1", int(said.rpartition(":")[2]))
        self._sockets: list[socket.socket] = []

    def connect(self) -> Client:
        """Return a new connection."""
        connection = socket.create_connection(self.address)
        self._sockets.append(connection)
        return Client(connection.fileno(), connection.fileno())

    def close(self, index: int) -> None:
        """Close a connection."""
        self._sockets[index].close()

    def stop(self) -> None:
        """End the agent and all connections."""
        for connection in self._sockets:
            connection.close()
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        check_log(self.log)


def environment(**more: object) -> dict[str, str]:
    """Return the variables of the agent's process."""
    fixed = {"ASAN_OPTIONS": ASAN_OPTIONS, "UBSAN_OPTIONS": "print_stacktrace=1"}
    return {**os.environ, **fixed, **{name: str(value) for name, value in more.items()}}


def check_log(log: Path) -> None:
    """Check that the sanitizers have reported nothing."""
    said = log.read_text(errors="replace")
    assert not any(word in said for word in ("Sanitizer", "runtime error")), said


def children(process: int) -> list[int]:
    """Return the processes that a process has started."""
    with open(f"/proc/{process}/task/{process}/children") as file:
        return [int(word) for word in file.read().split()]


def wait_for_end(*processes: int, seconds: float = 5) -> None:
    """Wait until processes have ended."""
    ends = time.monotonic() + seconds
    while left := [pid for pid in processes if _is_running(pid)]:
        assert time.monotonic() < ends, f"The processes {left} are still there."
        time.sleep(0.01)


def _is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"
