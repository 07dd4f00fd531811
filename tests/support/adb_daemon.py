"""The phone's side of adb over TCP, with this machine's shell in place of a phone's.

It speaks as much of adb's protocol (AOSP's protocol.txt, SYNC.TXT and shell_protocol.h) as
Debian's client needs for `devices`, `shell` and `push`.  The phone's ``/data/local/tmp`` is a
folder of the test, and `getprop` knows what the test says.
"""

from __future__ import annotations

import os
import queue
import shlex
import signal
import socket
import stat
import struct
import subprocess
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

_HEADER = struct.Struct("<4sIIIII")
_PACKET = struct.Struct("<BI")
_VERSION, _MOST_BYTES = 0x01000001, 1 << 18
TMP = "/data/local/tmp"
#: Identifiers of the shell protocol's packets.
_STDIN, _STDOUT, _STDERR, _EXIT, _CLOSE_STDIN = range(5)


@dataclass
class Phone:
    """State of the phone, which tests change."""

    root: Path
    model: str = "Test_Phone"
    properties: dict[str, str] = field(
        default_factory=lambda: {
            "ro.product.cpu.abilist": "x86_64",
            "ro.build.version.sdk": "34",
            "ro.build.version.release": "14",
        }
    )
    features: str = "shell_v2,cmd,stat_v2,ls_v2,fixed_push_mkdir"
    is_authorized: bool = True
    is_full: bool = False  #: Whether writing fails; folders that exist can be named.
    is_executable: bool = True  #: Whether programs may be run from `TMP`.
    #: Bytes to the phone, and from it, after which the cable is pulled.
    most_received: float = float("inf")
    most_sent: float = float("inf")
    bytes_per_s: float = float("inf")  #: Speed of the link, in each direction.
    pushed: list[str] = field(default_factory=list)  #: Names of files that were sent.
    environment: dict[str, str] = field(default_factory=dict)


class AdbDaemon:
    """A daemon that listens at `port`, by default a free one, until it is closed."""

    def __init__(self, phone: Phone, port: int = 0):
        self.phone = phone
        self.received = self.sent = 0
        self.children: list[subprocess.Popen[bytes]] = []
        (phone.root / "tmp").mkdir(parents=True, exist_ok=True)
        self._listening = socket.create_server(("127.0.0.1", port))
        self.port = self._listening.getsockname()[1]
        self._connections: list[_Connection] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def pull_cable(self) -> None:
        """Drop all connections and accept none, as if the cable were pulled."""
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for connection in self._connections:
            connection.close()
        self._connections.clear()

    def running(self) -> list[int]:
        """Return the process numbers of commands that have not ended."""
        return [child.pid for child in self.children if child.poll() is None]

    def count(self, received: int, sent: int) -> None:
        """Count bytes that were carried, and pull the cable if they are too many."""
        self.received += received
        self.sent += sent
        if self.received > self.phone.most_received or self.sent > self.phone.most_sent:
            self.pull_cable()
            raise OSError("the cable was pulled")

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._connections.append(_Connection(connection, self))
            self._connections[-1].start()


class _Connection:
    """A connection of an adb server, with its streams."""

    def __init__(self, connection: socket.socket, daemon: AdbDaemon):
        self.daemon, self.phone = daemon, daemon.phone
        self._socket = connection
        self._lock = threading.Lock()
        self._streams: dict[int, _Stream] = {}
        self._count = 0

    def start(self) -> None:
        """Answer messages; the daemon knows the connection already."""
        threading.Thread(target=self._serve, daemon=True).start()

    def send(self, command: bytes, first: int, second: int, data: bytes = b"") -> None:
        """Send a message."""
        magic = int.from_bytes(command, "little") ^ 0xFFFFFFFF
        checksum = sum(data) & 0xFFFFFFFF
        header = _HEADER.pack(command, first, second, len(data), checksum, magic)
        with self._lock, suppress(OSError):
            self.daemon.count(0, len(data))
            self._socket.sendall(header + data)
            time.sleep(len(data) / self.phone.bytes_per_s)

    def close(self) -> None:
        """Drop the connection, and kill what runs."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _serve(self) -> None:
        try:
            while len(header := self._read(_HEADER.size)) == _HEADER.size:
                command, first, second, count, _, _ = _HEADER.unpack(header)
                data = self._read(count)
                self.daemon.count(len(data), 0)
                time.sleep(count / self.phone.bytes_per_s)
                self._handle(command, first, second, data)
        except (OSError, ValueError):
            pass
        for stream in list(self._streams.values()):
            stream.end()

    def _read(self, count: int) -> bytes:
        content = b""
        while len(content) < count:
            # adb writes a message in two parts, and would wait for the first one's receipt.
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
            part = self._socket.recv(count - len(content))
            if not part:
                break
            content += part
        return content

    def _handle(self, command: bytes, first: int, second: int, data: bytes) -> None:
        if command == b"CNXN":
            if not self.phone.is_authorized:
                self.send(b"AUTH", 1, 0, os.urandom(20))
                return
            phone = self.phone
            banner = (
                f"device::ro.product.name=test;ro.product.model={phone.model};"
                f"ro.product.device=test;features={phone.features}"
            )
            self.send(b"CNXN", _VERSION, _MOST_BYTES, banner.encode())
        elif command == b"AUTH":
            # Whatever the key is, the user has not accepted it.
            if second == 0 and first != 3:
                self.send(b"AUTH", 1, 0, os.urandom(20))
        elif command == b"OPEN":
            self._count += 1
            service = data.rstrip(b"\0").decode()
            kind = next((k for name, k in _SERVICES.items() if service.startswith(name)), None)
            if kind is None:
                self.send(b"CLSE", 0, first)
                return
            self._streams[self._count] = kind(self, self._count, first, service)
        elif command == b"OKAY" and second in self._streams:
            self._streams[second].acknowledged.set()
        elif command == b"WRTE" and second in self._streams:
            self._streams[second].receive(data)
            self.send(b"OKAY", second, first)
        elif command == b"CLSE" and second in self._streams:
            self._streams.pop(second).end()


class _Stream:
    """A stream of a connection."""

    def __init__(self, connection: _Connection, own: int, theirs: int, service: str):
        self.connection, self.own, self.theirs = connection, own, theirs
        self.acknowledged = threading.Event()
        connection.send(b"OKAY", own, theirs)
        self.begin(service)

    def begin(self, service: str) -> None:
        """Start the service."""

    def receive(self, data: bytes) -> None:
        """Take bytes of the client."""

    def end(self) -> None:
        """End the service: the client has closed the stream, or is gone."""

    def write(self, data: bytes) -> None:
        """Send bytes, each part after the one before was acknowledged."""
        for begin in range(0, len(data), _MOST_BYTES):
            self.acknowledged.clear()
            part = data[begin : begin + _MOST_BYTES]
            self.connection.send(b"WRTE", self.own, self.theirs, part)
            self.acknowledged.wait(30)

    def close(self) -> None:
        """Close the stream."""
        self.connection.send(b"CLSE", self.own, self.theirs)


class _Shell(_Stream):
    """``shell,v2,raw:COMMAND``, ``shell:COMMAND`` and ``exec:COMMAND``."""

    def begin(self, service: str) -> None:
        phone = self.connection.phone
        words, _, command = service.partition(":")
        self._v2 = "v2" in words
        self._pending = b""
        folder = str(phone.root / "tmp")
        properties = "".join(
            f"{shlex.quote(name)}) echo {shlex.quote(value)};; "
            for name, value in phone.properties.items()
        )
        lines = [f'getprop() {{ case "$1" in {properties} *) echo;; esac; }}']
        if phone.is_full:
            fail = "{ echo 'mkdir: No space left on device' >&2; return 1; }"
            lines += [f'mkdir() {{ [ -d "$2" ] || {fail}; }}']
        if not phone.is_executable:
            # Without the permission, the shell itself refuses the program, with status 126.
            lines += ["chmod() { :; }"]
        lines.append(command.replace(TMP, folder))
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", "\n".join(lines)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if self._v2 else subprocess.STDOUT,
            bufsize=0,
            start_new_session=True,
            env={**os.environ, **phone.environment},
        )
        self.connection.daemon.children.append(self._process)
        self._is_done = False
        self._turn = threading.Lock()
        # A thread feeds the command: the reader of messages must go on for acknowledgements.
        self._input: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        threading.Thread(target=self._feed, daemon=True).start()
        readers = [threading.Thread(target=self._forward, args=(_STDOUT,), daemon=True)]
        if self._v2:
            readers.append(threading.Thread(target=self._forward, args=(_STDERR,), daemon=True))
        for reader in readers:
            reader.start()
        threading.Thread(target=self._wait, args=(readers,), daemon=True).start()

    def receive(self, data: bytes) -> None:
        if not self._v2:
            self._input.put(data)
            return
        self._pending += data
        while len(self._pending) >= _PACKET.size:
            kind, count = _PACKET.unpack_from(self._pending)
            if len(self._pending) < _PACKET.size + count:
                return
            content = self._pending[_PACKET.size : _PACKET.size + count]
            self._pending = self._pending[_PACKET.size + count :]
            if kind == _STDIN:
                self._input.put(content)
            elif kind == _CLOSE_STDIN:
                self._input.put(None)

    def end(self) -> None:
        # As adbd does: the command's pipes are closed, and it gets SIGHUP.
        self._input.put(None)
        if self._is_done:
            # Another process may have its number.
            return
        with suppress(OSError):
            os.killpg(self._process.pid, signal.SIGHUP)

    def _feed(self) -> None:
        with suppress(OSError, ValueError):
            while (content := self._input.get()) is not None:
                view = memoryview(content)
                while view:
                    view = view[self._process.stdin.write(view) :]
        with suppress(OSError):
            self._process.stdin.close()

    def _forward(self, kind: int) -> None:
        pipe = self._process.stdout if kind == _STDOUT else self._process.stderr
        while content := pipe.read(1 << 16):
            with self._turn:
                self.write((_PACKET.pack(kind, len(content)) if self._v2 else b"") + content)

    def _wait(self, readers: list[threading.Thread]) -> None:
        for reader in readers:
            reader.join()
        status = self._process.wait()
        self._is_done = True
        if self._v2:
            self.write(_PACKET.pack(_EXIT, 1) + bytes([status & 0xFF]))
        self.close()


class _Sync(_Stream):
    """``sync:``, which sends and receives files."""

    def begin(self, service: str) -> None:
        self._pending = b""
        self._file: Path | None = None
        self._content = bytearray()
        self._failed = False

    def receive(self, data: bytes) -> None:
        self._pending += data
        while len(self._pending) >= 8:
            name = self._pending[:4]
            (number,) = struct.unpack_from("<I", self._pending, 4)
            count = 0 if name == b"DONE" else number
            if len(self._pending) < 8 + count:
                return
            content, self._pending = self._pending[8 : 8 + count], self._pending[8 + count :]
            self._handle(name, content)

    def _path(self, text: str) -> Path:
        return Path(text.replace(TMP, str(self.connection.phone.root / "tmp")))

    def _handle(self, name: bytes, content: bytes) -> None:
        phone = self.connection.phone
        if name in (b"STAT", b"LST2", b"STA2"):
            self._answer_stat(name, self._path(content.decode()))
        elif name == b"SEND":
            path, _, _ = content.decode().rpartition(",")
            self._file, self._content = self._path(path), bytearray()
            self._failed = False
        elif name == b"DATA":
            self._content += content
            if phone.is_full and not self._failed:
                self._failed = True
                reason = b"couldn't write: No space left on device"
                self._in_thread(b"FAIL" + struct.pack("<I", len(reason)) + reason)
        elif name == b"DONE" and not self._failed:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            self._file.write_bytes(self._content)
            phone.pushed.append(self._file.name)
            self._in_thread(b"OKAY" + struct.pack("<I", 0))
        elif name == b"RECV":
            self._send_file(self._path(content.decode()))
        elif name == b"QUIT":
            self.close()

    def _send_file(self, path: Path) -> None:
        try:
            content = path.read_bytes()
        except OSError as error:
            reason = str(error.strerror).encode()
            self._in_thread(b"FAIL" + struct.pack("<I", len(reason)) + reason)
            return
        parts = [content[begin : begin + (1 << 16)] for begin in range(0, len(content), 1 << 16)]
        data = b"".join(b"DATA" + struct.pack("<I", len(part)) + part for part in parts)
        self._in_thread(data + b"DONE" + struct.pack("<I", 0))

    def _answer_stat(self, name: bytes, path: Path) -> None:
        found = path.stat() if path.exists() else None
        mode = found.st_mode if found else 0
        size = found.st_size if found else 0
        if name == b"STAT":
            self._in_thread(b"STAT" + struct.pack("<III", mode, size, 0))
            return
        error = 0 if found else 2
        if found is None:
            mode = 0
        elif stat.S_ISDIR(mode):
            mode = 0o40755
        facts = struct.pack("<IQQIIIIQqqq", error, 0, 0, mode, 1, 0, 0, size, 0, 0, 0)
        self._in_thread(name + facts)

    def _in_thread(self, data: bytes) -> None:
        # The reader must go on, to take the acknowledgement.
        threading.Thread(target=self.write, args=(data,), daemon=True).start()


_SERVICES = {"sync:": _Sync, "shell": _Shell, "exec:": _Shell}
