"""Frames of the agent's protocol, and the fields in them (docs/agent-protocol.md)."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum

from ..errors import AgentError

VERSION = 1
MAGIC = b"TVMA"
#: Magic, kind, zero, request, time limit in ms, length of the payload.
_HEADER = struct.Struct("<4sHHIII")
_CHECKSUM = struct.Struct("<I")
MOST_PAYLOAD_BYTES = 4 << 20
#: Most bytes of a text in a request.
MOST_TEXT_BYTES = 64 << 10
#: Most items of a list in a request.
MOST_ITEMS = 4096
#: Longest time limit of a request.
MOST_LIMIT_MS = 3_600_000
#: Bytes of a blob in one frame.
PIECE_BYTES = 256 << 10
DIGEST_BYTES = 32
PART, ANSWER = 0x4000, 0x8000
ERROR = 0xFFFF


class Kind(IntEnum):
    """Kinds of requests."""

    HELLO = 1
    PING = 2
    SENSORS = 3
    HAVE = 4
    PUT = 5
    CANCEL = 6
    RESET = 7
    FACTS = 16
    OPEN = 17
    CLOSE = 18
    RUN = 19
    TIME = 20
    PROFILE = 21
    SELF_TEST = 22
    DESCRIBE = 23
    BINARIES = 24
    TUNE = 25
    BUILD = 32
    ALLOCATE = 33
    WRITE = 34
    FILL = 35
    READ = 36
    LAUNCH = 37
    FREE = 38


class Code(IntEnum):
    """Codes of errors."""

    PROTOCOL = 1
    VERSIONS = 2
    BUSY = 3
    ARGUMENT = 4
    MISSING = 5
    STORE = 6
    LIBRARY = 7
    DEVICE = 8
    MEMORY = 9
    LOST = 10
    TIMEOUT = 11
    CANCELLED = 12


class FrameError(AgentError):
    """Raised if what arrived is no frame, or its fields are others than expected."""

    def __init__(self, reason: str):
        super().__init__(
            f"The agent's answer was not understood: {reason}.",
            remedy="Run the command again; if it happens again, report it.",
        )
        self.reason = reason


@dataclass(frozen=True)
class Frame:
    """A message in either direction."""

    kind: int
    request: int
    payload: bytes
    limit_ms: int = 0

    def encoded(self) -> bytes:
        """Return the frame's bytes; raise `AgentError` if they are too many."""
        if len(self.payload) > MOST_PAYLOAD_BYTES:
            raise _refused(
                f"A request of {len(self.payload)} bytes", f"at most {MOST_PAYLOAD_BYTES} bytes"
            )
        header = _HEADER.pack(MAGIC, self.kind, 0, self.request, self.limit_ms, len(self.payload))
        checksum = zlib.crc32(self.payload, zlib.crc32(header))
        return b"".join((header, _CHECKSUM.pack(checksum), self.payload))


def read_frame(read: Callable[[int], bytes]) -> Frame | None:
    """Read a frame; ``None`` if the stream has ended.

    ``read`` returns the wanted number of bytes, or fewer at the end.  Raises `FrameError` if the
    bytes are no frame, with the first of them.
    """
    size = _HEADER.size + _CHECKSUM.size
    header = read(size)
    if not header:
        return None
    if len(header) < size or not header.startswith(MAGIC):
        raise FrameError(f"instead of a frame came {header!r}")
    _, kind, _, request, limit_ms, count = _HEADER.unpack_from(header)
    if count > MOST_PAYLOAD_BYTES:
        raise FrameError(f"a frame has {count} bytes, more than {MOST_PAYLOAD_BYTES}")
    payload = read(count)
    if len(payload) < count:
        raise FrameError("the stream ended within a frame")
    (checksum,) = _CHECKSUM.unpack_from(header, _HEADER.size)
    if zlib.crc32(payload, zlib.crc32(header[: _HEADER.size])) != checksum:
        raise FrameError("the checksum of a frame is wrong")
    return Frame(kind, request, payload, limit_ms)


def _refused(what: str, expected: str) -> AgentError:
    return AgentError(
        f"{what} cannot be sent to an agent: {expected} was expected.",
        remedy="Give another value.",
        code=Code.ARGUMENT,
    )


class Fields:
    """Writer of a payload's fields; `AgentError` for a value that does not fit its field."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def u32(self, *values: int) -> Fields:
        """Add 32-bit numbers."""
        return self._add("<I", 32, values)

    def u64(self, value: int) -> Fields:
        """Add a 64-bit number."""
        return self._add("<Q", 64, (value,))

    def f64(self, value: float) -> Fields:
        """Add a floating-point number."""
        self._parts.append(struct.pack("<d", value))
        return self

    def raw(self, content: bytes) -> Fields:
        """Add bytes without their length."""
        self._parts.append(content)
        return self

    def text(self, value: str) -> Fields:
        """Add a text after its length."""
        content = value.encode()
        if len(content) > MOST_TEXT_BYTES or b"\0" in content:
            expected = f"at most {MOST_TEXT_BYTES} bytes, none of them zero,"
            raise _refused(f"The text {value[:40]!r}, {len(content)} bytes,", expected)
        return self.u32(len(content)).raw(content)

    def _add(self, form: str, bits: int, values: Iterable[int]) -> Fields:
        for value in values:
            if not 0 <= value < 1 << bits:
                raise _refused(f"The number {value}", f"one from 0 to {(1 << bits) - 1}")
            self._parts.append(struct.pack(form, value))
        return self

    @property
    def payload(self) -> bytes:
        """Return the bytes of all fields."""
        return b"".join(self._parts)


class FieldReader:
    """Reader of a payload's fields, in order; each method raises `FrameError` at its end."""

    def __init__(self, payload: bytes):
        self._payload, self._at = payload, 0

    def raw(self, count: int) -> bytes:
        """Return some bytes."""
        end = self._at + count
        if end > len(self._payload):
            raise FrameError("the fields of an answer are cut short")
        found, self._at = self._payload[self._at : end], end
        return found

    def u32(self) -> int:
        """Return a 32-bit number."""
        return int.from_bytes(self.raw(4), "little")

    def u64(self) -> int:
        """Return a 64-bit number."""
        return int.from_bytes(self.raw(8), "little")

    def f64(self) -> float:
        """Return a floating-point number."""
        value: float = struct.unpack("<d", self.raw(8))[0]
        return value

    def text(self) -> str:
        """Return a text; what is not UTF-8 is replaced."""
        return self.raw(self.u32()).decode(errors="replace")

    def rest(self) -> bytes:
        """Return all bytes that are left."""
        return self.raw(len(self._payload) - self._at)

    def take_into(self, whole: bytearray | memoryview) -> None:
        """Copy what is left, which begins with its offset, to there."""
        offset, content = self.u64(), self.rest()
        whole[offset : offset + len(content)] = content
