"""Digest of a standalone library's code, which is checked before the code is loaded.

It is in a note (``PT_NOTE``, named ``tvmflow``), which remains when a library is stripped; the
linker reserves the space:

====== ====== ==============================================
offset bytes
====== ====== ==============================================
0      8      digest; zero before `stamp` has written it
8      8      virtual address of the embedded weights
16     8      bytes of these weights, zero without any
====== ====== ==============================================

The digest is XXH64.  The seed is zero for the first block, then the digest of the block before.
The blocks are the ELF header with zeros for its fields about sections, each program header, then
the contents of each ``PT_LOAD``, in blocks of 16 KiB and a rest.  The contents leave out these
headers, the digest, and the weights after their own header, which has their checksum.
``native/bindings/tvmflow_check.h`` computes the same in C.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

import xxhash

from ...runtime.regular_files import open_file
from .. import elf
from ..artifact import unreadable
from .format import WEIGHTS_HEADER

#: Beginning of the note: sizes of name and content, type, name.
_NOTE = struct.pack("<III8s", 8, 24, 1, b"tvmflow\0")
_CONTENT = struct.Struct("<QQQ")
_BLOCK_BYTES = 16 << 10
_MOST_SEGMENTS, _MOST_NOTES = 64, 4096
_LOAD, _NOTES = 1, 4


def note() -> str:
    """Return the note as assembler text, with zeros in place of the content that `stamp` writes."""
    words = ", ".join(str(word) for word in struct.unpack("<III", _NOTE[:12]))
    return (
        '.section .note.tvmflow,"a",%note\n.balign 4\n'
        f'.long {words}\n.asciz "tvmflow"\n.zero {_CONTENT.size}\n'
    )


def stamp(path: Path, weights_section: str) -> None:
    """Write the digest of a library, whose weights are in a section, into its note.

    Raises `ElfError` if it is no library with such a note.
    """
    section = elf.read_library(path).sections.get(weights_section)
    with open(path, "r+b") as file:
        library = _Library.read(file)
        slot = _find_slot(library)
        if slot is None:
            raise elf.ElfError("it has no note for the digest of its code")
        address = size = 0
        if section is not None and section.bytes:
            address, size = library.address_of(section.offset), section.bytes
        file.seek(slot)
        file.write(_CONTENT.pack(0, address, size))
        digest = _digest(library, slot)
        file.seek(slot)
        file.write(struct.pack("<Q", digest))


def check_code(path: Path) -> None:
    """Raise `ArtifactError` if a library's code has changed: it must not be run then."""
    try:
        with open_file(path) as file:
            library = _Library.read(file)
            slot = _find_slot(library)
            written = 0 if slot is None else _CONTENT.unpack(library.part(slot, _CONTENT.size))[0]
            if slot is None or not written:
                raise elf.ElfError("the digest of its code is missing")
            if _digest(library, slot) != written:
                raise elf.ElfError("the code is not what was written")
    except elf.ElfError as error:
        raise unreadable(path, f"the file is cut short or damaged ({error})") from error


class _Layout(NamedTuple):
    """Layout of headers of 32 or 64 bits, and the fields about sections, which are left out."""

    header: int
    of_sections: tuple[slice, slice]
    segment: struct.Struct
    fields: tuple[int, ...]  #: Type, offset, address and size of a segment.


_LAYOUTS = {
    1: _Layout(52, (slice(32, 36), slice(46, 52)), struct.Struct("<8I"), (0, 1, 2, 4)),
    2: _Layout(64, (slice(40, 48), slice(58, 64)), struct.Struct("<2I6Q"), (0, 2, 3, 5)),
}


class _Segment(NamedTuple):
    kind: int
    offset: int
    address: int
    size: int  #: In the file.


class _Range(NamedTuple):
    """A range of bytes in the file."""

    begin: int
    end: int


class _Library(NamedTuple):
    """Headers of a library."""

    file: BinaryIO
    header: bytes
    table: list[bytes]
    segments: list[_Segment]
    layout: _Layout

    @classmethod
    def read(cls, file: BinaryIO) -> _Library:
        """Read the headers; `ElfError` if they are not laid out as in libraries linked here."""
        header = file.read(64)
        layout = _LAYOUTS.get(header[4]) if header[:4] == b"\x7fELF" and len(header) == 64 else None
        if layout is None:
            raise elf.ElfError("it is not an ELF file")
        word = struct.Struct("<Q" if layout.header == 64 else "<I")
        (offset,) = word.unpack_from(header, 24 + word.size)
        size, count = struct.unpack_from("<HH", header, layout.header - 10)
        if offset != layout.header or size != layout.segment.size or count > _MOST_SEGMENTS:
            raise elf.ElfError("its table of segments is not where linkers write it")
        file.seek(layout.header)
        table = [file.read(size) for _ in range(count)]
        if any(len(row) != size for row in table):
            raise elf.ElfError("its table of segments is cut short")
        fields = [layout.segment.unpack(row) for row in table]
        segments = [_Segment(*(row[index] for index in layout.fields)) for row in fields]
        return cls(file, header[: layout.header], table, segments, layout)

    def part(self, offset: int, size: int) -> bytes:
        """Return bytes of the file; `ElfError` if the file is too short."""
        try:
            self.file.seek(offset)
            found = self.file.read(size)
        except (OSError, OverflowError):
            found = b""
        if len(found) != size:
            raise elf.ElfError("what is to be loaded ends after the end of the file")
        return found

    def of_kind(self, kind: int) -> list[_Segment]:
        """Return the segments of a type."""
        return [segment for segment in self.segments if segment.kind == kind]

    def address_of(self, offset: int) -> int:
        """Return the address of a byte of the file; `ElfError` if it is not loaded."""
        for load in self.of_kind(_LOAD):
            if load.offset <= offset < load.offset + load.size:
                return load.address + offset - load.offset
        raise elf.ElfError("its weights are not loaded")


def _find_slot(library: _Library) -> int | None:
    """Return the offset of the note's content in the file."""
    for segment in library.of_kind(_NOTES):
        content = library.part(segment.offset, min(segment.size, _MOST_NOTES))
        for at in range(0, len(content) - len(_NOTE) - _CONTENT.size + 1, 4):
            if content.startswith(_NOTE, at):
                return segment.offset + at + len(_NOTE)
    return None


def _digest(library: _Library, slot: int) -> int:
    """Return the digest of a library whose note has the address of the weights."""
    layout = library.layout
    header = bytearray(library.header)
    for field in layout.of_sections:
        header[field] = bytes(field.stop - field.start)
    digest = xxhash.xxh64_intdigest(header, 0)
    for row in library.table:
        digest = xxhash.xxh64_intdigest(row, digest)
    head = layout.header + len(library.table) * layout.segment.size
    holes = [_Range(slot, slot + 8)]
    _, address, size = _CONTENT.unpack(library.part(slot, _CONTENT.size))
    for load in library.of_kind(_LOAD):
        if size > WEIGHTS_HEADER.itemsize and load.address <= address < load.address + load.size:
            begin = load.offset + address - load.address
            holes.append(_Range(begin + WEIGHTS_HEADER.itemsize, begin + size))
    for load in library.of_kind(_LOAD):
        contents = _Range(max(load.offset, head), load.offset + load.size)
        for begin, end in _without(contents, holes):
            for at in range(begin, end, _BLOCK_BYTES):
                block = library.part(at, min(_BLOCK_BYTES, end - at))
                digest = xxhash.xxh64_intdigest(block, digest)
    return digest


def _without(contents: _Range, holes: Sequence[_Range]) -> Iterator[_Range]:
    """Yield the parts of contents outside of holes."""
    at = contents.begin
    for hole in sorted(holes):
        if at <= hole.begin < contents.end:
            yield _Range(at, hole.begin)
            at = hole.end
    yield _Range(at, contents.end)
