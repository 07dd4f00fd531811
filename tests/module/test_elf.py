"""Sections appended to a shared library, read by an independent reader."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

from tvmflow.module import elf

elffile = pytest.importorskip("elftools.elf.elffile")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    folder = tmp_path_factory.mktemp("elf")
    source = folder / "seven.c"
    source.write_text("int seven(void) { return 7; }\n")
    path = folder / "libseven.so"
    subprocess.run([compiler, "-shared", "-fPIC", str(source), "-o", str(path)], check=True)
    return path


def test_added_sections_are_found_and_the_library_still_works(library: Path, tmp_path: Path):
    path = tmp_path / "copy.so"
    shutil.copyfile(library, path)
    before = elf.read_library(path)
    big = bytes(range(256)) * 64
    added = elf.append_sections(
        path,
        [(".one", 4096, lambda file: file.write(big)), (".two", 1, lambda f: f.write(b"xyz"))],
    )
    assert added[".one"].offset % 4096 == 0
    after = elf.read_library(path)
    assert set(after.sections) == set(before.sections) | {".one", ".two"}
    assert ctypes.CDLL(str(path)).seven() == 7
    with open(path, "rb") as file:
        other = elffile.ELFFile(file)
        assert other.get_section_by_name(".one").data() == big
        assert other.get_section_by_name(".two").data() == b"xyz"
        assert other.get_section_by_name(".two")["sh_flags"] == 0
        names = [section.name for section in other.iter_sections()]
        assert other["e_machine"] == "EM_X86_64" or after.architecture != "x86_64"
    assert len(names) == len(set(names)) == len(after.sections)


def test_loadable_part_does_not_change(library: Path, tmp_path: Path):
    path = tmp_path / "copy.so"
    shutil.copyfile(library, path)
    elf.append_sections(path, [(".one", 1, lambda file: file.write(b"abc"))])
    old, new = library.read_bytes(), path.read_bytes()
    header = 64
    assert new[header : len(old)] == old[header:]


def test_a_section_is_not_added_twice(library: Path, tmp_path: Path):
    path = tmp_path / "copy.so"
    shutil.copyfile(library, path)
    elf.append_sections(path, [(".one", 1, lambda file: file.write(b"abc"))])
    with pytest.raises(elf.ElfError, match=r"\.one already"):
        elf.append_sections(path, [(".one", 1, lambda file: file.write(b"abc"))])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not an ELF"),
        (b"hello, world" * 20, "not an ELF"),
        (b"\x7fELF", "class or byte order"),
        (b"\x7fELF\x02\x02" + bytes(80), "class or byte order"),
        (b"\x7fELF\x02\x01" + bytes(20), "cut short"),
        (b"\x7fELF\x02\x01" + bytes(80), "not a shared library"),
        (b"\x7fELF\x01\x01" + bytes(80), "not a shared library"),
    ],
)
def test_other_files_are_refused(content: bytes, message: str, tmp_path: Path):
    path = tmp_path / "other"
    path.write_bytes(content)
    with pytest.raises(elf.ElfError, match=message):
        elf.read_library(path)
