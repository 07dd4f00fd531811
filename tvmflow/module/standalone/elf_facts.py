"""What the ELF file of a shared library tells the system that loads it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elftools.elf.constants import P_FLAGS
from elftools.elf.dynamic import DynamicSegment
from elftools.elf.elffile import ELFFile

from ...errors import ArtifactError
from ..elf import MACHINES
from ..reader import META

_DF_BIND_NOW = 0x8
_DF_TEXTREL = 0x4
_DF_1_NOW = 0x1
_DF_1_PIE = 0x8000000
#: Entries of the dynamic table that say the same as a flag.
_SAME_AS_FLAG = {"DT_BIND_NOW": _DF_BIND_NOW, "DT_TEXTREL": _DF_TEXTREL}
_PACKED_RELOCATIONS = ("DT_RELR", "DT_ANDROID_REL", "DT_ANDROID_RELA", "DT_ANDROID_RELR")


@dataclass(frozen=True)
class Load:
    """A part of the file that is mapped: its alignment, range and permissions."""

    align: int
    offset: int
    begin: int
    end: int
    writable: bool
    executable: bool


@dataclass(frozen=True)
class Undefined:
    """A symbol that another library must have."""

    name: str
    #: Whether the library loads without it.
    weak: bool
    #: Such as ``GLIBC_2.17``.
    version: str | None


@dataclass(frozen=True)
class ElfFacts:
    """What a shared library needs, offers and asks for."""

    architecture: str
    bits: int
    soname: str | None
    needed: tuple[str, ...]
    search_paths: tuple[str, ...]
    loads: tuple[Load, ...]
    #: Range that becomes read-only once the library is loaded.
    relro: tuple[int, int] | None
    #: Whether all functions are looked up when it is loaded, so that the table can be read-only.
    bind_now: bool
    text_relocations: bool
    packed_relocations: tuple[str, ...]
    #: ``None`` where the file does not say.
    executable_stack: bool | None
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
        """Whether TVM's runtime loads it."""
        return META in self.sections or any(n.startswith("__tvm_ffi_") for n in self.exported)

    @property
    def kind(self) -> str:
        """What it is, in words."""
        if self.is_tvm_module:
            return "module for TVM's runtime"
        return "standalone module" if "tvmflow_create" in self.exported else "other library"


def read_facts(path: str | os.PathLike[str]) -> ElfFacts:
    """Read the facts; nothing of the library is loaded.

    Raises
    ------
    ArtifactError
        If the file cannot be read, or is no ELF shared library, or is damaged.
    """
    where = Path(path)
    try:
        with open(where, "rb") as file:
            return _read(ELFFile(file))
    except OSError as error:
        raise ArtifactError(
            f"Reading {where} failed: {error.strerror or error}.",
            remedy="Give the path of a shared library.",
        ) from error
    except Exception as error:
        # Of damaged tables the reader raises anything.
        raise ArtifactError(
            f"Reading {where} failed: an ELF shared library was expected, but it is "
            f"none, or damaged: {str(error).strip() or type(error).__name__}.",
            remedy="Give a library that the linker has written, or compile it again if it was "
            "cut short.",
        ) from error


def _read(elf: Any) -> ElfFacts:
    if elf["e_type"] != "ET_DYN":
        raise ValueError("it is an ELF file of another kind")
    dynamic = next((s for s in elf.iter_segments() if isinstance(s, DynamicSegment)), None)
    if dynamic is None:
        raise ValueError("it has no dynamic table")
    end = elf.stream.seek(0, os.SEEK_END)
    segments: dict[str, list[Any]] = {}
    for segment in elf.iter_segments():
        segments.setdefault(segment["p_type"], []).append(segment)
        if segment["p_type"] == "PT_LOAD" and segment["p_offset"] + segment["p_filesz"] > end:
            raise ValueError("it is cut short: what is to be loaded ends behind its end")
    tags: list[Any] = list(dynamic.iter_tags())
    names = {tag.entry.d_tag for tag in tags}
    flags = sum(tag.entry.d_val for tag in tags if tag.entry.d_tag == "DT_FLAGS")
    flags_1 = sum(tag.entry.d_val for tag in tags if tag.entry.d_tag == "DT_FLAGS_1")
    for name, flag in _SAME_AS_FLAG.items():
        flags |= flag if name in names else 0
    if flags_1 & _DF_1_PIE:
        raise ValueError("it is a program")
    relro = next((_range(s) for s in segments.get("PT_GNU_RELRO", ())), None)
    stacks = [bool(s["p_flags"] & P_FLAGS.PF_X) for s in segments.get("PT_GNU_STACK", ())]
    hashes = {"DT_HASH": "sysv", "DT_GNU_HASH": "gnu"}
    versions, undefined, exported = _symbols(elf)
    machine = elf.header["e_machine"]
    number = machine if isinstance(machine, int) else _MACHINE_NUMBERS.get(machine, machine)
    return ElfFacts(
        architecture=MACHINES.get(number, str(machine)),
        bits=elf.elfclass,
        soname=next((tag.soname for tag in tags if tag.entry.d_tag == "DT_SONAME"), None),
        needed=tuple(tag.needed for tag in tags if tag.entry.d_tag == "DT_NEEDED"),
        search_paths=tuple(
            getattr(tag, tag.entry.d_tag[3:].lower())
            for tag in tags
            if tag.entry.d_tag in ("DT_RPATH", "DT_RUNPATH")
        ),
        loads=tuple(_load(segment) for segment in segments.get("PT_LOAD", ())),
        relro=relro,
        bind_now=bool(flags & _DF_BIND_NOW or flags_1 & _DF_1_NOW),
        text_relocations=bool(flags & _DF_TEXTREL),
        packed_relocations=tuple(name for name in _PACKED_RELOCATIONS if name in names),
        executable_stack=stacks[0] if stacks else None,
        thread_local_bytes=sum(s["p_memsz"] for s in segments.get("PT_TLS", ())),
        hash_tables=tuple(text for name, text in hashes.items() if name in names),
        build_id=_build_id(segments.get("PT_NOTE", ())),
        versions=versions,
        undefined=undefined,
        exported=exported,
        sections=tuple(section.name for section in elf.iter_sections()),
    )


_MACHINE_NUMBERS = {"EM_386": 3, "EM_ARM": 40, "EM_X86_64": 62, "EM_AARCH64": 183, "EM_RISCV": 243}


def _range(segment: Any) -> tuple[int, int]:
    return segment["p_vaddr"], segment["p_vaddr"] + segment["p_memsz"]


def _load(segment: Any) -> Load:
    flags = segment["p_flags"]
    return Load(
        segment["p_align"],
        segment["p_offset"],
        *_range(segment),
        writable=bool(flags & P_FLAGS.PF_W),
        executable=bool(flags & P_FLAGS.PF_X),
    )


def _build_id(segments: Any) -> str | None:
    for segment in segments:
        for note in segment.iter_notes():
            if note["n_type"] == "NT_GNU_BUILD_ID":
                return str(note["n_desc"])
    return None


def _symbols(
    elf: Any,
) -> tuple[dict[str, tuple[str, ...]], tuple[Undefined, ...], tuple[str, ...]]:
    """Return needed versions by library, undefined symbols, and exported ones."""
    table = elf.get_section_by_name(".dynsym")
    if table is None:
        raise ValueError("it has no table of dynamic symbols, or no section headers")
    by_index: dict[int, str] = {}
    by_library: dict[str, tuple[str, ...]] = {}
    if (needs := elf.get_section_by_name(".gnu.version_r")) is not None:
        if needs.num_versions() > needs["sh_size"]:
            raise ValueError("its table of versions is damaged")
        for library, parts in needs.iter_versions():
            found = list(parts)
            by_library[library.name] = tuple(part.name for part in found)
            by_index |= {part["vna_other"] & 0x7FFF: part.name for part in found}
    of_symbol = elf.get_section_by_name(".gnu.version")
    undefined, exported = [], []
    for index, symbol in enumerate(table.iter_symbols()):
        binding = symbol["st_info"]["bind"]
        if binding == "STB_LOCAL":
            continue
        if symbol["st_shndx"] != "SHN_UNDEF":
            exported.append(symbol.name)
            continue
        entry = of_symbol.get_symbol(index)["ndx"] if of_symbol is not None else None
        version = by_index.get(entry & 0x7FFF) if isinstance(entry, int) else None
        undefined.append(Undefined(symbol.name, binding == "STB_WEAK", version))
    return by_library, tuple(undefined), tuple(exported)
