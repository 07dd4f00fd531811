"""Linking compiled objects to a shared library, for this machine or another one.

TVM compiles host code for any triple by itself; only the last step needs a
linker for that triple.  A linker is looked for in this order: the system's own
compiler (for this machine), an installed cross compiler, ``clang``, and the clang
that comes as the Python package ``ziglang`` (extra ``cross``).
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from ..errors import TargetError

#: glibc whose symbol versions zig links against: old enough for every supported board.
_ZIG_GLIBC = "2.28"
_ARCHITECTURES = {"amd64": "x86_64", "x64": "x86_64", "arm64": "aarch64"}
_LLD_EMULATIONS = {"aarch64": "aarch64linux", "x86_64": "elf_x86_64"}


@dataclass(frozen=True)
class Host:
    """The machine that host code runs on: the parts of its triple."""

    architecture: str
    system: str
    abi: str

    @classmethod
    def parse(cls, triple: str) -> Host:
        """Read a triple of three or four parts, such as ``aarch64-linux-gnu``.

        Raises
        ------
        TargetError
            If it is not of that form, or its system is not Linux or Android.
        """
        parts = triple.strip().lower().split("-")
        if len(parts) == 4:
            del parts[1]  # the vendor
        if len(parts) != 3 or not all(parts) or parts[1] != "linux":
            raise TargetError(
                f"The host triple {triple!r} was not understood: "
                "ARCHITECTURE-linux-ABI was expected.",
                remedy="Use a triple such as x86_64-linux-gnu, aarch64-linux-gnu or "
                "aarch64-linux-android24.",
            )
        architecture = _ARCHITECTURES.get(parts[0], parts[0])
        return cls(architecture, parts[1], parts[2])

    @classmethod
    def native(cls) -> Host:
        """Return the machine that this process runs on."""
        machine = platform.machine().lower()
        abi = "musl" if platform.libc_ver()[0] == "" and _runs_on_musl() else "gnu"
        return cls(_ARCHITECTURES.get(machine, machine), "linux", abi)

    @property
    def triple(self) -> str:
        """The three-part triple that cross compilers are named after."""
        return f"{self.architecture}-{self.system}-{self.abi}"

    @property
    def llvm_triple(self) -> str:
        """The four-part triple for LLVM, which knows Android's reserved registers only from it."""
        return f"{self.architecture}-unknown-{self.system}-{self.abi}"

    @property
    def is_android(self) -> bool:
        """Whether the C library is Android's."""
        return self.abi.startswith("android")

    @property
    def is_native(self) -> bool:
        """Whether this process could load a library of this host."""
        return self == Host.native()


@dataclass(frozen=True)
class LinkTool:
    """One way to link: its name for messages and the function that does it."""

    name: str
    link: Callable[[Sequence[str], Path, Path], None]  # objects, output, folder for its own files


def link_shared(objects: Sequence[str], output: Path, host: Host, work: Path) -> str:
    """Link object files to a shared library with the first tool that can.

    Parameters
    ----------
    objects
        Object files for `host`.
    output
        The library to write.
    host
        The machine it is for.
    work
        A folder for the tool's intermediate files.

    Returns
    -------
    str
        The name of the tool used.

    Raises
    ------
    TargetError
        If no tool for `host` is installed, or all fail; the details hold what
        each said.
    """
    failures = []
    for tool in _tools(host):
        try:
            tool.link(objects, output, work)
            return tool.name
        except subprocess.CalledProcessError as error:
            failures.append(f"{tool.name}: {(error.stderr or '').strip() or error}")
    reason = "every linker found failed" if failures else "no linker for it was found"
    package = _COMPILER_PACKAGES.get(host.triple, "a compiler for it")
    raise TargetError(
        f"Linking a module for the host {host.triple} failed: {reason}.",
        remedy=f"Install {package}, or: python -m pip install 'tvmflow[cross]'",
        details="\n".join(failures) or None,
    )


_COMPILER_PACKAGES = {
    "x86_64-linux-gnu": "gcc",
    "aarch64-linux-gnu": "gcc-aarch64-linux-gnu",
    "arm-linux-gnueabihf": "gcc-arm-linux-gnueabihf",
    "riscv64-linux-gnu": "gcc-riscv64-linux-gnu",
}


def _tools(host: Host) -> Iterator[LinkTool]:
    names = [f"{host.triple}-{suffix}" for suffix in ("g++", "gcc", "clang")]
    if host.is_native:
        names = ["cc", "gcc", "clang", "c++", *names]
    for name in names:
        if path := shutil.which(name):
            yield LinkTool(name, _driver([path]))
    if path := shutil.which("clang"):
        yield LinkTool("clang --target", _driver([path, f"--target={host.llvm_triple}"]))
    if find_spec("ziglang") is not None:
        if host.is_android:
            yield LinkTool("ziglang ld.lld", lambda *args: _link_android(host, *args))
        else:
            version = f".{_ZIG_GLIBC}" if host.abi.startswith("gnu") else ""
            target = ["-target", f"{host.triple}{version}"]
            yield LinkTool("ziglang cc", _driver([*_ZIG, "cc", *target]))


_ZIG = [sys.executable, "-m", "ziglang"]


def _driver(command: list[str]) -> Callable[[Sequence[str], Path, Path], None]:
    """Return a linking function for a compiler driver."""

    def link(objects: Sequence[str], output: Path, work: Path) -> None:
        # Kernels call the mathematical library; TVM's own symbols are found when loading.
        flags = ["-shared", "-fPIC", "-Wl,-z,noexecstack", "-Wl,-z,relro"]
        _run([*command, *flags, "-o", str(output), *objects, "-lm"], work)

    return link


def _link_android(host: Host, objects: Sequence[str], output: Path, work: Path) -> None:
    """Link for Android without its NDK.

    The libraries of Android that are needed at run time are stood in for by empty
    ones of the same names, so that the module records that it needs them.  Page
    size 16 KiB: newer devices refuse less, older ones do not mind.
    """
    emulation = _LLD_EMULATIONS.get(host.architecture)
    if emulation is None:
        raise subprocess.CalledProcessError(1, "ld.lld", stderr=f"no emulation for {host.triple}")
    linker = [*_ZIG, "ld.lld", "-m", emulation, "-shared"]
    empty = work / "empty.s"
    empty.write_text("")
    _run(
        [*_ZIG, "clang", f"--target={host.llvm_triple}", "-c", str(empty), "-o", f"{empty}.o"], work
    )
    stubs = []
    for name in ("libm.so", "libc.so"):
        stub = work / name
        _run([*linker, "-soname", name, f"{empty}.o", "-o", str(stub)], work)
        stubs.append(str(stub))
    pages = ["-z", "max-page-size=16384", "-z", "common-page-size=16384"]
    hardening = ["-z", "now", "-z", "relro", "-z", "noexecstack", "-z", "text"]
    # No name of its own (-soname): the file is renamed later.
    tables = ["--hash-style=both", "--build-id=sha1", "--eh-frame-hdr"]
    needed = ["--no-as-needed", *stubs, "--unresolved-symbols=ignore-all"]
    options = [*tables, *hardening, *pages]
    _run([*linker, *options, "-o", str(output), *objects, *needed], work)


def _run(command: Sequence[str], work: Path) -> None:
    environment = {**os.environ, "ZIG_LOCAL_CACHE_DIR": str(work / "zig-cache")}
    subprocess.run(
        command, check=True, capture_output=True, text=True, errors="replace", env=environment
    )


def _runs_on_musl() -> bool:
    return any(Path("/lib").glob("ld-musl-*"))
