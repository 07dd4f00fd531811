"""Sections of ELF shared libraries: listed, and added behind a linked library.

A compiled module carries its description and its weights as sections of the
shared library that are not loaded with it (no ``SHF_ALLOC``).  Adding them needs
no assembler or ``objcopy`` for the library's architecture: the section table is
at the end of the file, so new sections are written behind the old content and a
longer table behind them.  The loadable part does not move.

Format: System V Application Binary Interface, "Object Files".
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import BinaryIO

_SHT_PROGBITS = 1
_SHT_NOBITS = 8
_ET_DYN = 3
_MAGIC = b"\x7fELF"

#: Names of ``e_machine`` values as architectures of host triples.
MACHINES = {3: "i686", 40: "arm", 62: "x86_64", 183: "aarch64", 243: "riscv64"}


class ElfError(ValueError):
    """The file is not a little-endian ELF shared library, or is damaged."""


@dataclass(frozen=True)
class _Layout:
    """Where the fields of the headers are, for one word size."""

    bits: int
    header: struct.Struct  # e_shoff, e_shentsize, e_shnum, e_shstrndx, read separately
    section: struct.Struct  # name, type, flags, addr, offset, size, link, info, align, entsize
    header_bytes: int
    shoff_at: int
    shoff: struct.Struct
    counts_at: int


_COUNTS = struct.Struct("<HHH")
_LAYOUTS = {
    1: _Layout(
        32, struct.Struct("<16sHHI"), struct.Struct("<10I"), 52, 32, struct.Struct("<I"), 46
    ),
    2: _Layout(
        64, struct.Struct("<16sHHI"), struct.Struct("<IIQQQQIIQQ"), 64, 40, struct.Struct("<Q"), 58
    ),
}


@dataclass(frozen=True)
class Section:
    """One section: where its bytes are in the file."""

    name: str
    offset: int
    bytes: int


@dataclass(frozen=True)
class Library:
    """A shared library's architecture and sections."""

    bits: int
    machine: int
    sections: dict[str, Section]

    @property
    def architecture(self) -> str:
        """The architecture as it stands in a triple, or the ELF number."""
        return MACHINES.get(self.machine, f"ELF machine {self.machine}")


def read_library(path: str | os.PathLike[str]) -> Library:
    """List the sections of a shared library.

    Raises
    ------
    ElfError
        If the file is not a little-endian ELF shared library, or its section
        table does not lie within the file (it is cut short, for example).
    """
    with open(path, "rb") as file:
        layout, machine, _, table, names = _read_tables(file)
        size = file.seek(0, os.SEEK_END)
    sections: dict[str, Section] = {}
    for entry in table:
        name = _name(names, entry[0])
        if entry[1] != _SHT_NOBITS and entry[4] + entry[5] > size:
            raise ElfError(f"the section {name} ends behind the end of the file")
        sections.setdefault(name, Section(name, entry[4], entry[5]))
    return Library(layout.bits, machine, sections)


def append_sections(
    path: str | os.PathLike[str],
    sections: Sequence[tuple[str, int, Callable[[BinaryIO], None]]],
) -> dict[str, Section]:
    """Add sections that are not loaded with the library, changing the file in place.

    Parameters
    ----------
    path
        A linked shared library.
    sections
        Name, alignment in the file in bytes, and a function that writes the
        content at the file's position (streaming; it may be larger than memory).

    Returns
    -------
    dict
        The added sections by name.

    Raises
    ------
    ElfError
        If the file is not a shared library, or has a section of that name.
    """
    with open(path, "r+b") as file:
        layout, _, names_index, table, names = _read_tables(file)
        existing = {_name(names, entry[0]) for entry in table}
        added: dict[str, Section] = {}
        for name, align, write in sections:
            if name in existing:
                raise ElfError(f"there is a section {name} already")
            start = _seek_aligned(file, align)
            write(file)
            end = file.seek(0, os.SEEK_END)
            added[name] = Section(name, start, end - start)
            table.append(
                (len(names), _SHT_PROGBITS, 0, 0, start, end - start, 0, 0, align, 0),
            )
            names += name.encode() + b"\0"
        start = _seek_aligned(file, 1)
        file.write(names)
        old = table[names_index]
        table[names_index] = (*old[:4], start, len(names), *old[6:])
        table_start = _seek_aligned(file, 8)
        file.writelines(layout.section.pack(*entry) for entry in table)
        file.seek(layout.shoff_at)
        file.write(layout.shoff.pack(table_start))
        file.seek(layout.counts_at)
        file.write(_COUNTS.pack(layout.section.size, len(table), names_index))
    return added


_Table = list[tuple[int, ...]]


def _read_tables(file: BinaryIO) -> tuple[_Layout, int, int, _Table, bytes]:
    """Read the layout, the machine, the names' section index, all sections and their names."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    start = file.read(64)
    if not start.startswith(_MAGIC):
        raise ElfError("it is not an ELF file")
    layout = _LAYOUTS.get(start[4]) if len(start) > 5 else None
    if layout is None or start[5] != 1:
        raise ElfError("its ELF class or byte order is unknown")
    if len(start) < layout.header_bytes:
        raise ElfError("its ELF header is cut short")
    _, file_type, machine, _ = layout.header.unpack_from(start)
    if file_type != _ET_DYN:
        raise ElfError("it is an ELF file, but not a shared library")
    (offset,) = layout.shoff.unpack_from(start, layout.shoff_at)
    entry_bytes, count, names_index = _COUNTS.unpack_from(start, layout.counts_at)
    if entry_bytes != layout.section.size or names_index >= count:
        raise ElfError("its section table is missing or damaged")
    if offset + count * entry_bytes > size:
        raise ElfError("its section table lies behind the end of the file")
    file.seek(offset)
    table = list(layout.section.iter_unpack(file.read(count * entry_bytes)))
    where, length = table[names_index][4:6]
    if where + length > size:
        raise ElfError("the names of its sections lie behind the end of the file")
    file.seek(where)
    return layout, machine, names_index, table, file.read(length)


def _name(names: bytes, start: int) -> str:
    end = names.find(b"\0", start)
    if start >= len(names) or end < 0:
        raise ElfError("the names of its sections are damaged")
    return names[start:end].decode("utf-8", "replace")


def _seek_aligned(file: BinaryIO, align: int) -> int:
    """Move to the end of the file, padded with zeros to a multiple of `align`."""
    end = file.seek(0, os.SEEK_END)
    padding = -end % align
    file.write(b"\0" * padding)
    return end + padding
