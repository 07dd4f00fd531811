"""Sidecar ``<library>.programs``: binaries of a library's programs, which save building them.

The file is a journal (``docs/journal.md``) with an additional type of frames, so that damage only
affects the frames that it touches.  ``docs/standalone.md`` has the byte layout.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ...errors import ArtifactError, JournalError
from ...journal import frames
from ...runtime.json_types import JsonObject
from ...runtime.regular_files import read_bytes
from ..files import check_writable, write_file

#: Suffix after the library's name.
SUFFIX = ".programs"
#: Key in a description for the SHA-256 of the sources that a binary was built from.
SOURCE = "source"
#: Keys in a description that identify the device.
OWNER = ("device", "platform", "driver")
_KEY_BYTES = 32
#: Header of a binary in an application's cache folder, see ``native/core/binaries.c``.
_ENTRY = struct.Struct("<8sII32sQ32s")
_ENTRY_MAGIC = b"TVMFLOWP"


class Program(NamedTuple):
    """Binary of a program."""

    key: bytes  #: SHA-256 of its source, its options, the device and the driver.
    description: dict[str, str]  #: Texts for people: device, driver, and so on.
    binary: bytes


@dataclass(frozen=True)
class Updated:
    """Changes made by an update of a file."""

    added: int
    replaced: int  #: Programs that had the same key as a new one.
    dropped: int  #: Programs of other sources, which this library never requests.
    damaged_bytes: int  #: Bytes outside of intact frames, which were removed.


def sidecar_path(library: Path) -> Path:
    """Return the path of a library's file of binaries."""
    return library.with_name(library.name + SUFFIX)


def read(path: Path) -> list[Program]:
    """Return the programs in a file, skipping damage; `ArtifactError` if it is another kind."""
    return _read(path)[0]


def summary(library: Path, source: str) -> JsonObject | None:
    """Count a library's binaries by device, as JSON; ``None`` if there is no file of them.

    ``source`` is the SHA-256 of the library's sources; binaries of other sources are of no use.
    """
    path = sidecar_path(library)
    if not path.is_file():
        return None
    programs, damaged_bytes = _read(path)
    ours = [p for p in programs if p.description.get(SOURCE, source) == source]
    devices: dict[tuple[str, ...], list[int]] = {}
    for program in ours:
        owner = tuple(program.description.get(name, "") for name in OWNER)
        devices.setdefault(owner, []).append(len(program.binary))
    return {
        "file": path.name,
        "bytes": path.stat().st_size,
        "devices": [
            {**dict(zip(OWNER, owner, strict=True)), "programs": len(sizes), "bytes": sum(sizes)}
            for owner, sizes in devices.items()
        ],
        "of_other_sources": len(programs) - len(ours),
        "damaged_bytes": damaged_bytes,
    }


def update(path: Path, programs: Iterable[Program]) -> Updated:
    """Add programs to a file, replacing those with the same keys; create it if needed.

    Readers see the old file or the new one.  Programs of other sources are dropped.  Raises
    `ArtifactError` if it is another kind of file, cannot be written, or a binary has 16 MiB or
    more.
    """
    new = {program.key: program for program in programs}
    sources = {program.description.get(SOURCE) for program in new.values()}
    # The sources of binaries without that key are unknown.
    known = bool(new) and None not in sources
    check_writable(path)
    with _alone(path.parent):
        old, damaged_bytes = _read(path) if path.exists() else ([], 0)
        kept = {p.key: p for p in old if not known or p.description.get(SOURCE) in {None, *sources}}
        write_file(path, _content((kept | new).values()))
    replaced = len(kept.keys() & new.keys())
    return Updated(len(new) - replaced, replaced, len(old) - len(kept), damaged_bytes)


def from_folder(folder: Path, description: dict[str, str]) -> Iterator[Program]:
    """Yield the intact programs that a library has stored in an application's cache folder."""
    for path in sorted(folder.glob("*.program")):
        content = read_bytes(path)
        if binary := content[_ENTRY.size :]:
            magic, _, _, key, size, checksum = _ENTRY.unpack_from(content)
            digest = hashlib.sha256(binary).digest()
            if (magic, size, checksum) == (_ENTRY_MAGIC, len(binary), digest):
                yield Program(key, description, binary)


def _read(path: Path) -> tuple[list[Program], int]:
    """Return the programs in a file, and the number of damaged bytes."""
    try:
        data = memoryview(read_bytes(path))
        damage = frames.check_header(data, path)
    except (OSError, JournalError) as error:
        found = error.message if isinstance(error, JournalError) else error.strerror
        raise ArtifactError(
            f"Reading the binaries in {path} failed: {found}",
            remedy=f"Remove it, and run `tvmflow precompile {path.name.removesuffix(SUFFIX)}`.",
        ) from error
    programs, damaged_bytes = [], damage.length if damage else 0
    for frame in frames.frames(data, frames.HEADER_BYTES):
        if isinstance(frame, frames.Damage):
            damaged_bytes += frame.length
        elif program := _program(frame):
            programs.append(program)
    return programs, damaged_bytes


def _program(frame: frames.Frame) -> Program | None:
    key, rest = bytes(frame.payload[:_KEY_BYTES]), bytes(frame.payload[_KEY_BYTES:])
    # A file from another machine may be invalid in spite of correct checksums.
    with suppress(struct.error, ValueError):
        (length,) = struct.unpack_from("<I", rest)
        description = json.loads(rest[4 : 4 + length])
        if frame.kind == frames.PROGRAM and isinstance(description, dict) and rest[4 + length :]:
            texts = {str(name): str(text) for name, text in description.items()}
            return Program(key, texts, rest[4 + length :])
    return None


def _content(programs: Iterable[Program]) -> bytes:
    content = bytearray(frames.header())
    for key, description, binary in programs:
        text = json.dumps(description, sort_keys=True).encode()
        payload = key + struct.pack("<I", len(text)) + text + binary
        try:
            content += frames.encode(frames.PROGRAM, payload, len(content))
        except JournalError as error:
            raise ArtifactError(
                f"Writing a program's binary of {len(binary)} bytes failed: less than 16 MiB was "
                "expected.",
                remedy="Give the application a cache folder; this device compiles.",
            ) from error
    return bytes(content)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Lock a folder against other writers, which could drop each other's programs."""
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        # A file system without locks rarely has several writers.
        with suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
