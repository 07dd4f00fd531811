"""File header and frames of a journal; ``docs/journal.md`` has the byte layout.

Every frame has a checksum of its offset, type, length and content.  After damage, reading resumes
at the next frame whose checksum matches, so that only the frames that are damaged get lost.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ..errors import JournalError

#: The first byte is not text, and the line ends reveal a file that was converted as text.
MAGIC = b"\x89TVJ\r\n\x1a\n"
#: A reader rejects other major versions; a minor version may add types of frames.
MAJOR, MINOR = 1, 0
_HEADER = struct.Struct("<8sHHI")
HEADER_BYTES = _HEADER.size

#: First bytes of a frame.
SYNC = b"\xd7\x4a"
#: Sync, type (high byte) and length (low three), checksum.
_FRAME = struct.Struct("<2sII")
FRAME_BYTES = _FRAME.size
MAX_PAYLOAD_BYTES = (1 << 24) - 1

#: Types of frames; programs are not tuning records: see `tvmflow.module.standalone.programs`.
DEFINITION, TRIAL, EVENT, BLOCK, INDEX, PROGRAM = 1, 2, 3, 4, 5, 6


class Frame(NamedTuple):
    """A frame whose checksum matches."""

    offset: int
    kind: int
    payload: memoryview

    @property
    def end(self) -> int:
        """Return the offset of the next frame."""
        return self.offset + FRAME_BYTES + len(self.payload)


class Damage(NamedTuple):
    """Bytes that are not a valid frame."""

    offset: int
    length: int
    reason: str

    def __str__(self) -> str:
        return f"{self.length} bytes at {self.offset}: {self.reason}"


def header() -> bytes:
    """Return the first bytes of a file."""
    start = MAGIC + struct.pack("<HH", MAJOR, MINOR)
    return start + struct.pack("<I", zlib.crc32(start))


def check_header(data: memoryview, path: Path) -> Damage | None:
    """Check the header; return the damage if only the header is damaged.

    Raises `JournalError` if the file is not a journal, or has another major version.
    """
    start = bytes(data[:HEADER_BYTES])
    if len(start) == HEADER_BYTES:
        magic, major, minor, checksum = _HEADER.unpack(start)
        if zlib.crc32(start[:-4]) == checksum and magic == MAGIC:
            if major == MAJOR:
                return None
            raise JournalError(
                f"{path} is a journal of format version {major}.{minor}, but this tvmflow reads "
                f"version {MAJOR}.",
                remedy="Use the tvmflow that wrote it, or a newer one.",
            )
        if next((f for f in frames(data, HEADER_BYTES) if isinstance(f, Frame)), None):
            return Damage(0, HEADER_BYTES, "the header does not match its checksum")
    what = "is empty" if not start else f"begins with {start[:8]!r}"
    raise JournalError(
        f"{path} was expected to be a tuning journal, but {what}.",
        remedy="Name a file that `tvmflow journal import` or `tvmflow tune` wrote.",
    )


def encode(kind: int, payload: bytes, offset: int) -> bytes:
    """Return a frame for ``offset`` in the file; `JournalError` if the payload is too long."""
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise JournalError(
            f"A record of {len(payload)} bytes is too long for a journal, which takes "
            f"{MAX_PAYLOAD_BYTES}.",
            remedy="Leave the original document or the message out of the record.",
        )
    head = kind << 24 | len(payload)
    checksum = zlib.crc32(payload, zlib.crc32(struct.pack("<QI", offset, head)))
    return _FRAME.pack(SYNC, head, checksum) + payload


def frame_at(data: memoryview, offset: int) -> Frame | None:
    """Return the frame at an offset; ``None`` if there is none, or it is damaged or cut."""
    if offset < HEADER_BYTES or offset + FRAME_BYTES > len(data):
        return None
    sync, head, checksum = _FRAME.unpack_from(data, offset)
    start = offset + FRAME_BYTES
    end = start + (head & MAX_PAYLOAD_BYTES)
    if sync != SYNC or end > len(data):
        return None
    payload = data[start:end]
    # The offset is part of the checksum, so a copy of a frame inside a payload is rejected.
    if zlib.crc32(payload, zlib.crc32(struct.pack("<QI", offset, head))) != checksum:
        return None
    return Frame(offset, head >> 24, payload)


def frames(data: memoryview, start: int) -> Iterator[Frame | Damage]:
    """Yield the frames starting at an offset, and the damage between them.

    The bytes after the last frame are the tail: a record that is being written, or was cut.
    """
    offset = start
    while offset < len(data):
        frame = frame_at(data, offset)
        if frame is not None:
            yield frame
            offset = frame.end
            continue
        found = _next_frame(data, offset + 1)
        if found is None:
            yield Damage(offset, len(data) - offset, TAIL)
            return
        yield Damage(offset, found - offset, "no frame matches its checksum")
        offset = found


#: Reason of the damage after the last frame.
TAIL = "cut off, or being written"


def _next_frame(data: memoryview, offset: int) -> int | None:
    base = offset
    # Damage is usually short, so the searched bytes are copied piece by piece.
    for size in (1 << 12, 1 << 20, len(data)):
        window = bytes(data[base : base + size])
        at = window.find(SYNC)
        while at >= 0:
            if frame_at(data, base + at) is not None:
                return base + at
            at = window.find(SYNC, at + 1)
        # A marker may cross the end of the window.
        base += max(0, len(window) - 1)
    return None


def write_all(fd: int, data: bytes) -> None:
    """Write all of ``data``, even if the system writes only part of it at once."""
    written = os.write(fd, data)
    while written < len(data):
        written += os.write(fd, memoryview(data)[written:])
