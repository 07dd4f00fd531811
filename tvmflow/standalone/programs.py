"""``<library>.programs``: binaries of a library's programs, which a device so need not build.

It is a journal (``docs/journal.md``) with frames of one more type, so that what applies to those
applies to it: whole frames are appended, and damage costs the frames that it touches.
``docs/standalone.md`` has the byte layout.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from ..tuning.appending import Appender, close_locked, open_locked
from ..tuning.frames import HEADER_BYTES, PROGRAM, Frame, check_header, frames

#: What follows the library's name.
SUFFIX = ".programs"
_KEY_BYTES = 32
#: Before a binary in the folder that an application gives, see ``native/standalone/cache.c``.
_ENTRY = struct.Struct("<8sII32sQ32s")
_ENTRY_MAGIC = b"TVMFLOWP"


class Program(NamedTuple):
    """A program's binary."""

    #: SHA-256 of its source, its options, the device and the driver.
    key: bytes
    #: Whose it is, for people: device, driver, and so on.
    description: dict[str, str]
    binary: bytes


def read(path: Path) -> Iterator[Program]:
    """Programs of a file, in the order in which they were appended; damage is skipped.

    Raises
    ------
    JournalError
        If it is another kind of file.
    """
    data = memoryview(path.read_bytes())
    check_header(data, path)
    for frame in frames(data, HEADER_BYTES):
        if not isinstance(frame, Frame) or frame.kind != PROGRAM:
            continue
        key, rest = bytes(frame.payload[:_KEY_BYTES]), frame.payload[_KEY_BYTES:]
        (length,) = struct.unpack_from("<I", rest)
        yield Program(key, json.loads(bytes(rest[4 : 4 + length])), bytes(rest[4 + length :]))


def append(path: Path, programs: Iterable[Program]) -> int:
    """Append programs that a file does not have yet; make it where there is none.

    Raises
    ------
    JournalError
        If it is another kind of file, cannot be written, or a binary is 16 MiB or larger.
    """
    fd = open_locked(path)
    try:
        known = {program.key for program in read(path)}
        appender = Appender(path, fd)
        count = 0
        for key, description, binary in programs:
            if key in known:
                continue
            text = json.dumps(description, sort_keys=True).encode()
            appender.write((PROGRAM, key + struct.pack("<I", len(text)) + text + binary))
            known.add(key)
            count += 1
        appender.sync()
        return count
    finally:
        close_locked(fd)


def from_folder(folder: Path, description: dict[str, str]) -> Iterator[Program]:
    """Programs that a library has stored in an application's cache folder; damaged ones are not."""
    for path in sorted(folder.glob("*.program")):
        content = path.read_bytes()
        if len(content) <= _ENTRY.size:
            continue
        magic, _, _, key, size, checksum = _ENTRY.unpack_from(content)
        binary = content[_ENTRY.size :]
        if (magic, size) == (_ENTRY_MAGIC, len(binary)) and (
            hashlib.sha256(binary).digest() == checksum
        ):
            yield Program(key, description, binary)
