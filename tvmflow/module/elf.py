"""Reading ELF shared libraries (sections, requirements), and adding sections to them.

A compiled module carries its description and its weights as sections of the
shared library that are not loaded with it (no ``SHF_ALLOC``).  Adding them needs
no assembler or ``objcopy`` for the library's architecture: the section table is
at the end of the file, so new sections are written after the old content, followed by a
longer table.  The loadable part does not move.

Format: System V Application Binary Interface, "Object Files"; parsed and packed by pyelftools.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

from elftools.construct import Container
from elftools.elf.constants import P_FLAGS
from elftools.elf.dynamic import DynamicSegment, DynamicTag
from elftools.elf.elffile import ELFFile
from elftools.elf.enums import ENUM_DT_FLAGS, ENUM_DT_FLAGS_1, ENUM_E_MACHINE
from elftools.elf.gnuversions import GNUVerNeedSection, GNUVerSymSection
from elftools.elf.sections import SymbolTableSection
from elftools.elf.segments import NoteSegment, Segment

from ..errors import ArtifactError
from ..runtime.regular_files import open_file

#: Section with the metadata of a module for TVM's runtime.
META = ".tvmflow.meta"

#: Architectures in host triples, by ``e_machine``.
MACHINES = {3: "i686", 40: "arm", 62: "x86_64", 183: "aarch64", 243: "riscv64"}

_HASH_TABLES = {"DT_HASH": "sysv", "DT_GNU_HASH": "gnu"}
_PACKED_RELOCATIONS = ("DT_RELR", "DT_ANDROID_REL", "DT_ANDROID_RELA", "DT_ANDROID_RELR")


class ElfError(ValueError):
    """Raised for a file that is no little-endian ELF shared library, or is damaged."""


class Section(NamedTuple):
    """Position and size of a section's bytes in the file."""

    offset: int
    bytes: int


class Library(NamedTuple):
    """Architecture of a shared library, as in a host triple, and its sections by name."""

    architecture: str
    sections: dict[str, Section]


def read_library(path: str | os.PathLike[str]) -> Library:
    """Read the section table of a shared library; `ElfError` if it is none, or cut short."""
    with _opened(path) as elf:
        size = elf.stream.seek(0, os.SEEK_END)
        sections: dict[str, Section] = {}
        for section in elf.iter_sections():
            found = Section(section["sh_offset"], section["sh_size"])
            if section["sh_type"] != "SHT_NOBITS" and sum(found) > size:
                raise ElfError(f"the section {section.name} ends after the end of the file")
            sections.setdefault(section.name, found)
        return Library(_architecture(elf), sections)


def read_section(path: str | os.PathLike[str], section: Section) -> bytes:
    """Return the content of a section."""
    with open_file(path) as file:
        file.seek(section.offset)
        return file.read(section.bytes)


def append_sections(
    path: str | os.PathLike[str],
    sections: Sequence[tuple[str, int, Callable[[BinaryIO], object]]],
) -> dict[str, Section]:
    """Add sections that are not loaded with a library, changing the file in place.

    Each section is given by its name, its alignment in the file in bytes, and a function that
    writes the content at the file's position (streaming; it may be larger than memory).  Returns
    the new sections by name.  Raises `ElfError` if the file is not a shared library, or has a
    section of that name.
    """
    with _opened(path) as elf:
        header, structs = elf.header, elf.structs
        table = [section.header for section in elf.iter_sections()]
        existing = {section.name for section in elf.iter_sections()}
        names = elf.get_section(header.e_shstrndx).data()
    with open(path, "r+b") as file:
        added: dict[str, Section] = {}
        for name, align, write in sections:
            if name in existing:
                raise ElfError(f"there is a section {name} already")
            start = _seek_aligned(file, align)
            write(file)
            added[name] = Section(start, file.seek(0, os.SEEK_END) - start)
            entry = Container(**dict.fromkeys(table[0], 0))
            entry.update({"sh_name": len(names), "sh_type": "SHT_PROGBITS", "sh_addralign": align})
            entry.update({"sh_offset": start, "sh_size": added[name].bytes})
            table.append(entry)
            names += name.encode() + b"\0"
        of_names = table[header.e_shstrndx]
        of_names.sh_offset, of_names.sh_size = _seek_aligned(file, 1), len(names)
        file.write(names)
        header.e_shoff, header.e_shnum = _seek_aligned(file, 8), len(table)
        file.writelines(structs.Elf_Shdr.build(entry) for entry in table)
        file.seek(0)
        file.write(structs.Elf_Ehdr.build(header))
    return added


@contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[ELFFile]:
    """Open a shared library; translate the reader's errors about damaged tables to `ElfError`."""
    with open_file(path) as file:
        start = file.read(6)
        if not start.startswith(b"\x7fELF"):
            raise ElfError("it is not an ELF file")
        if len(start) < 6 or start[4] not in (1, 2) or start[5] != 1:
            raise ElfError("its ELF class or byte order is unknown")
        try:
            elf = ELFFile(file)
            if elf["e_type"] != "ET_DYN":
                raise ElfError("it is an ELF file, but not a shared library")
            yield elf
        except (ElfError, OSError):
            raise
        except Exception as error:
            # On damaged tables pyelftools raises exceptions of any type.
            reason = str(error).strip() or type(error).__name__
            raise ElfError(f"it is cut short or its tables are damaged: {reason}") from error


def _architecture(elf: ELFFile) -> str:
    number = ENUM_E_MACHINE.get(elf["e_machine"], elf["e_machine"])
    return MACHINES.get(number, f"ELF machine {number}")


def _seek_aligned(file: BinaryIO, align: int) -> int:
    """Move to the end of the file, padded with zeros to a multiple of `align`."""
    end = file.seek(0, os.SEEK_END)
    padding = -end % align
    file.write(b"\0" * padding)
    return end + padding


# -- facts for the system's loader -----------------------------------------------------------


@dataclass(frozen=True)
class Load:
    """A segment that the loader maps: its alignment, range and permissions."""

    align: int
    offset: int
    begin: int
    end: int
    writable: bool
    executable: bool


@dataclass(frozen=True)
class Undefined:
    """A symbol that another library must define."""

    name: str
    weak: bool  #: Whether the library loads without it.
    version: str | None  #: Such as ``GLIBC_2.17``.


@dataclass(frozen=True)
class ElfFacts:
    """Facts of a shared library for its loader: what it needs, exports and requests."""

    architecture: str
    bits: int
    soname: str | None
    needed: tuple[str, ...]
    search_paths: tuple[str, ...]
    loads: tuple[Load, ...]
    relro: tuple[int, int] | None  #: Range that becomes read-only once the library is loaded.
    #: Whether all symbols are bound at load time, so that their table can be read-only.
    bind_now: bool
    text_relocations: bool
    packed_relocations: tuple[str, ...]
    executable_stack: bool | None  #: ``None`` where the file does not say.
    thread_local_bytes: int
    hash_tables: tuple[str, ...]
    build_id: str | None
    #: Names of versions by library, such as ``GLIBC_2.17`` of ``libc.so.6``.
    versions: dict[str, tuple[str, ...]]
    undefined: tuple[Undefined, ...]
    exported: tuple[str, ...]
    sections: tuple[str, ...]

    @property
    def is_tvm_module(self) -> bool:
        """Return whether the library is a module for TVM's runtime."""
        return META in self.sections or any(n.startswith("__tvm_ffi_") for n in self.exported)

    @property
    def kind(self) -> str:
        """Return the kind of library, in words."""
        if self.is_tvm_module:
            return "module for TVM's runtime"
        return "standalone module" if "tvmflow_create" in self.exported else "other library"


def read_facts(path: str | os.PathLike[str]) -> ElfFacts:
    """Read a library's facts; `ArtifactError` if it is unreadable, damaged or no ELF library."""
    try:
        with _opened(path) as elf:
            return _facts(elf)
    except OSError as error:
        reason, remedy = error.strerror or error, "Give the path of a shared library."
        raise ArtifactError(f"Reading {Path(path)} failed: {reason}.", remedy=remedy) from error
    except ElfError as error:
        raise ArtifactError(
            f"Reading {Path(path)} failed: an ELF shared library was expected, but {error}.",
            remedy="Give a library that the linker has written, or compile it again if it was "
            "cut short.",
        ) from error


def _facts(elf: ELFFile) -> ElfFacts:
    dynamic = next((s for s in elf.iter_segments() if isinstance(s, DynamicSegment)), None)
    if dynamic is None:
        raise ElfError("it has no dynamic table")
    end = elf.stream.seek(0, os.SEEK_END)
    segments: defaultdict[str, list[Segment]] = defaultdict(list)
    for segment in elf.iter_segments():
        segments[segment["p_type"]].append(segment)
        if segment["p_type"] == "PT_LOAD" and segment["p_offset"] + segment["p_filesz"] > end:
            raise ElfError("it is cut short: a segment to load ends after the end of the file")
    tags: defaultdict[str, list[DynamicTag]] = defaultdict(list)
    for tag in dynamic.iter_tags():
        tags[tag.entry.d_tag].append(tag)
    flags, flags_1 = (sum(t.entry.d_val for t in tags[n]) for n in ("DT_FLAGS", "DT_FLAGS_1"))
    if flags_1 & ENUM_DT_FLAGS_1["DF_1_PIE"]:
        raise ElfError("it is a program")
    now = flags & ENUM_DT_FLAGS["DF_BIND_NOW"] or flags_1 & ENUM_DT_FLAGS_1["DF_1_NOW"]
    noted = (s for s in segments["PT_NOTE"] if isinstance(s, NoteSegment))
    notes = (note for segment in noted for note in segment.iter_notes())
    versions, undefined, exported = _symbols(elf)
    return ElfFacts(
        architecture=_architecture(elf),
        bits=elf.elfclass,
        soname=next(map(_text, tags["DT_SONAME"]), None),
        needed=tuple(map(_text, tags["DT_NEEDED"])),
        search_paths=tuple(map(_text, tags["DT_RPATH"] + tags["DT_RUNPATH"])),
        loads=tuple(map(_load, segments["PT_LOAD"])),
        relro=next(map(_range, segments["PT_GNU_RELRO"]), None),
        bind_now=bool(now or tags["DT_BIND_NOW"]),
        text_relocations=bool(flags & ENUM_DT_FLAGS["DF_TEXTREL"] or tags["DT_TEXTREL"]),
        packed_relocations=tuple(name for name in _PACKED_RELOCATIONS if tags[name]),
        executable_stack=next((_load(s).executable for s in segments["PT_GNU_STACK"]), None),
        thread_local_bytes=sum(s["p_memsz"] for s in segments["PT_TLS"]),
        hash_tables=tuple(text for name, text in _HASH_TABLES.items() if tags[name]),
        build_id=next((str(n["n_desc"]) for n in notes if n["n_type"] == "NT_GNU_BUILD_ID"), None),
        versions=versions,
        undefined=undefined,
        exported=exported,
        sections=tuple(section.name for section in elf.iter_sections()),
    )


def _text(tag: DynamicTag) -> str:
    """Return the string of an entry in the dynamic table, such as a library's name."""
    return str(getattr(tag, tag.entry.d_tag.removeprefix("DT_").lower()))


def _range(segment: Segment) -> tuple[int, int]:
    return segment["p_vaddr"], segment["p_vaddr"] + segment["p_memsz"]


def _load(segment: Segment) -> Load:
    writable, executable = (bool(segment["p_flags"] & f) for f in (P_FLAGS.PF_W, P_FLAGS.PF_X))
    return Load(segment["p_align"], segment["p_offset"], *_range(segment), writable, executable)


def _symbols(
    elf: ELFFile,
) -> tuple[dict[str, tuple[str, ...]], tuple[Undefined, ...], tuple[str, ...]]:
    """Return the needed versions by library, the undefined and the exported symbols."""
    table = elf.get_section_by_name(".dynsym")
    if not isinstance(table, SymbolTableSection):
        raise ElfError("it has no table of dynamic symbols, or no section headers")
    by_index: dict[int, str] = {}
    by_library: dict[str, tuple[str, ...]] = {}
    needs = elf.get_section_by_name(".gnu.version_r")
    if isinstance(needs, GNUVerNeedSection):
        if needs.num_versions() > needs["sh_size"]:
            raise ElfError("its table of versions is damaged")
        for library, parts in needs.iter_versions():
            found = list(parts)
            by_library[str(library.name)] = tuple(str(part.name) for part in found)
            by_index |= {part["vna_other"] & 0x7FFF: str(part.name) for part in found}
    versions = elf.get_section_by_name(".gnu.version")
    undefined, exported = [], []
    for index, symbol in enumerate(table.iter_symbols()):
        binding = symbol["st_info"]["bind"]
        if binding == "STB_LOCAL":
            continue
        if symbol["st_shndx"] != "SHN_UNDEF":
            exported.append(symbol.name)
            continue
        ndx = versions.get_symbol(index)["ndx"] if isinstance(versions, GNUVerSymSection) else None
        version = by_index.get(ndx & 0x7FFF) if isinstance(ndx, int) else None
        undefined.append(Undefined(symbol.name, binding == "STB_WEAK", version))
    return by_library, tuple(undefined), tuple(exported)
