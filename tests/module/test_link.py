"""Host triples, and linking for other machines."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.tiny_network import build, write

import tvmflow
from tvmflow._versions import install_command
from tvmflow.errors import TargetError
from tvmflow.module import link

elffile = pytest.importorskip("elftools.elf.elffile")


@pytest.mark.parametrize(
    ("text", "triple", "llvm"),
    [
        ("aarch64-linux-gnu", "aarch64-linux-gnu", "aarch64-unknown-linux-gnu"),
        ("aarch64-unknown-linux-gnu", "aarch64-linux-gnu", "aarch64-unknown-linux-gnu"),
        ("arm64-linux-android24", "aarch64-linux-android24", "aarch64-unknown-linux-android24"),
        ("AMD64-pc-linux-musl", "x86_64-linux-musl", "x86_64-unknown-linux-musl"),
        ("linux-x64", "x86_64-linux-gnu", "x86_64-unknown-linux-gnu"),
        ("linux-arm64", "aarch64-linux-gnu", "aarch64-unknown-linux-gnu"),
        ("android-arm64", "aarch64-linux-android24", "aarch64-unknown-linux-android24"),
    ],
)
def test_triples(text: str, triple: str, llvm: str):
    host = link.Host.parse(text)
    assert (host.triple, host.llvm_triple) == (triple, llvm)
    assert link.Host.parse(llvm) == host


@pytest.mark.parametrize("text", ["", "x86_64", "aarch64-linux", "a-b-c", "x86_64-linux-gnu-x-y"])
def test_what_is_no_triple(text: str):
    with pytest.raises(TargetError, match="ARCHITECTURE-linux-ABI was expected") as caught:
        link.Host.parse(text)
    assert "android-arm64" in str(caught.value)


def test_this_machine_is_native():
    assert link.Host.native().is_native
    assert not link.Host("pdp11", "gnu").is_native


def test_no_linker_for_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(link, "find_spec", lambda name: None)
    monkeypatch.setattr(link.shutil, "which", lambda name: None)
    host = link.Host.parse("aarch64-linux-gnu")
    with pytest.raises(TargetError, match="no linker for it was found") as caught:
        link.link_shared([], tmp_path / "x.so", host, tmp_path)
    assert "gcc-aarch64-linux-gnu" in str(caught.value)
    assert install_command("cross") in str(caught.value)


def test_the_next_linker_is_tried_and_all_failures_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    used: list[Any] = []

    class Fake(link.Tool):
        def link(self, *arguments: Any, **_: Any) -> None:
            if self.name != "good":
                raise subprocess.CalledProcessError(1, "ld", stderr=f"{self.name} says no")
            used.append(arguments[:3])

    def available(*names: str) -> None:
        found = [Fake(name, (), ()) for name in names]
        monkeypatch.setattr(link, "tools", lambda host: iter(found))

    host = link.Host.native()
    available("first", "good")
    assert link.link_shared(["a.o"], tmp_path / "x.so", host, tmp_path) == "good"
    assert used == [(["a.o"], tmp_path / "x.so", tmp_path)]
    available("first", "second")
    with pytest.raises(TargetError, match="every linker found failed") as caught:
        link.link_shared(["a.o"], tmp_path / "x.so", host, tmp_path)
    assert caught.value.details == "first: first says no\nsecond: second says no"


def test_android_s_remedy_is_its_ndk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(link, "tools", lambda host: iter(()))
    with pytest.raises(TargetError) as caught:
        link.link_shared([], tmp_path / "x.so", link.Host.parse("android-arm64"), tmp_path)
    assert "ANDROID_NDK_HOME" in str(caught.value.remedy)


def test_a_full_disk_is_no_fault_of_the_linker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    tools = link.Tool("", (), ())
    with pytest.raises(OSError, match="No space left on device"):
        tools.run(["sh", "-c", "echo >&2 'ld: x.o: No space left on device'; exit 1"], tmp_path)
    with pytest.raises(subprocess.CalledProcessError):
        tools.run(["false"], tmp_path)
    # Some compilers end without a message.
    monkeypatch.setattr(link.shutil, "disk_usage", lambda path: SimpleNamespace(free=100))
    with pytest.raises(OSError, match="No space left on device"):
        tools.run(["false"], tmp_path)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set a home that is a file: root may write into every folder."""
    path = tmp_path / "home"
    path.touch()
    monkeypatch.setenv("HOME", str(path))
    for name in ("XDG_CACHE_HOME", "ZIG_GLOBAL_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    return path


def test_zig_keeps_nothing_where_it_cannot(home: Path, tmp_path: Path):
    code = "import os; print(os.environ.get('ZIG_GLOBAL_CACHE_DIR'))"

    def folder() -> str:
        return link.Tool("", (), ()).run([sys.executable, "-c", code], tmp_path).strip()

    assert folder() == str(tmp_path / "zig-global")
    home.unlink()
    assert folder() == "None"


@pytest.mark.cross
@pytest.mark.slow
def test_zig_links_where_it_can_keep_nothing(home: Path, tmp_path: Path):
    host = "aarch64-linux-gnu"
    objects = build(link.Host.parse(host).llvm_triple)
    write(objects, tmp_path / "m.so", host=host)


@pytest.mark.cross
@pytest.mark.parametrize(
    ("host", "machine", "needed"),
    [
        ("aarch64-linux-gnu", "EM_AARCH64", set()),
        ("aarch64-linux-android24", "EM_AARCH64", {"libm.so", "libc.so"}),
    ],
)
def test_modules_for_other_machines(host: str, machine: str, needed: set[str], tmp_path: Path):
    llvm = link.Host.parse(host).llvm_triple
    artifact = write(build(llvm), tmp_path / "m.so", host=host)
    artifact.check()
    assert artifact.architecture == "aarch64"
    assert artifact.metadata["host"] == host
    with open(artifact.path, "rb") as file:
        elf = elffile.ELFFile(file)
        assert elf["e_machine"] == machine
        tags = list(elf.get_section_by_name(".dynamic").iter_tags())
        assert needed <= {tag.needed for tag in tags if tag.entry.d_tag == "DT_NEEDED"}
        loads = [s for s in elf.iter_segments() if s["p_type"] == "PT_LOAD"]
        # Android devices with 16 KiB pages refuse smaller alignments.
        assert all(segment["p_align"] % 0x4000 == 0 for segment in loads)
        symbols = elf.get_section_by_name(".dynsym")
        assert symbols.get_symbol_by_name("__tvm_ffi__library_bin")


def compiler(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_a_host_without_a_linker_is_refused_before_the_work(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(link, "tools", lambda host: iter(()))
    for host in (link.Host.native(), link.Host.parse("aarch64-linux-gnu")):
        with pytest.raises(TargetError, match=f"{host.triple} failed: no linker for it was found"):
            link.check_linker(host)


def test_a_linker_that_fails_for_another_host_is_refused_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """For example clang without the other machine's C library."""
    host = link.Host("riscv64", "gnu")
    monkeypatch.setattr(link, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    compiler(tmp_path, "clang", "exit 1")
    compiler(tmp_path, "riscv64-linux-gnu-gcc", "echo 'no crti.o' >&2; exit 1")
    with pytest.raises(TargetError, match="every linker found failed") as caught:
        link.check_linker(host)
    assert "riscv64-linux-gnu-gcc: no crti.o" in str(caught.value.details)
    # A working linker is tested once, until it changes.
    counts = tmp_path / "calls"
    compiler(tmp_path, "riscv64-linux-gnu-gcc", f"echo >> {counts}")
    for _ in range(3):
        link.check_linker(host)
    assert counts.read_text() == "\n\n"


def test_compiling_asks_for_a_linker_first(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(link, "tools", lambda host: iter(()))
    with pytest.raises(TargetError, match="no linker for it was found"):
        tvmflow.compile("there-is-no-such.onnx", target="llvm")
