"""A compiler with its linker, and how they are called."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

#: What LLVM's linker calls the formats of architectures.
LLD_EMULATIONS = {"aarch64": "aarch64linux", "x86_64": "elf_x86_64"}
#: A disk with less free space is full to a linker, which may die of it without a word.
FULL_BYTES = 64 << 10
_HARDENING = ("-z", "now", "-z", "relro", "-z", "noexecstack")


@dataclass(frozen=True)
class Tool:
    """One way to compile C, assemble and link for one host."""

    #: For messages, and in what a module says of itself.
    name: str
    #: Compiles and assembles; options follow.
    compiler: tuple[str, ...]
    #: Links; options follow.
    linker: tuple[str, ...]
    #: Whether the linker is called by a compiler, which hands options on to it.
    is_driver: bool = True
    #: Libraries of the host that the tool lacks, with the symbols that they have.
    stubs: Mapping[str, frozenset[str]] = field(default_factory=dict)
    #: Whether the result is for the oldest supported C library and not for this machine's.
    is_portable: bool = False

    def link(
        self,
        objects: Sequence[str | Path],
        output: Path,
        work: Path,
        options: Sequence[str] = (),
        libraries: Sequence[str] = ("m",),
    ) -> None:
        """Link a shared library.

        Parameters
        ----------
        objects
            Object files for the host.
        output
            The library to write.
        work
            A folder for intermediate files.
        options
            Options of the linker.
        libraries
            Libraries of the host, as they stand behind ``-l``.

        Raises
        ------
        subprocess.CalledProcessError
            If the linker refuses.
        """
        options = (*_HARDENING, *options)
        if self.is_driver:
            options = ("-fPIC", *(word for one in options for word in ("-Xlinker", one)))
        found = [f"-l{name}" for name in libraries]
        if self.stubs:
            found = [self._stub(name, symbols, work) for name, symbols in self.stubs.items()]
        self.run([*self.linker, "-shared", *options, "-o", output, *objects, *found], work)

    def compile(self, source: Path, target: Path, work: Path, flags: Sequence[str] = ()) -> None:
        """Compile C, or assemble, to an object file."""
        # From the folder of the source: neither messages nor objects then depend on where it
        # lies, and what it includes is found beside it.
        command = [*self.compiler, *flags, "-c", source.name, "-o", str(target.absolute())]
        self.run(command, work, source.parent)

    def run(self, command: Sequence[str | Path], work: Path, folder: Path | None = None) -> str:
        """Run one of the tool's commands, by default in this folder; return what it printed.

        Raises
        ------
        subprocess.CalledProcessError
            If the command fails.
        OSError
            If it does because the disk is full, which commands tell in ways of their own.
        """
        environment = {**os.environ, "ZIG_LOCAL_CACHE_DIR": str(work.absolute() / "zig-cache")}
        if not _has_cache_folder():
            # zig refuses to work without; what it makes of a C library is made again each time.
            environment["ZIG_GLOBAL_CACHE_DIR"] = str(work.absolute() / "zig-global")
        try:
            return subprocess.run(
                command,
                check=True,
                capture_output=True,
                text=True,
                errors="replace",
                env=environment,
                cwd=folder,
            ).stdout
        except subprocess.CalledProcessError as error:
            full = os.strerror(errno.ENOSPC)
            if full in error.stderr or shutil.disk_usage(work).free < FULL_BYTES:
                raise OSError(errno.ENOSPC, full) from error
            raise

    def _stub(self, library: str, symbols: frozenset[str], work: Path) -> str:
        """Write a library of empty functions, which only has the right names."""
        source, target, stub = (work / f"{library}{end}" for end in (".s", ".o", ""))
        lines = [f".globl {name}\n.type {name}, %function\n{name}:\n" for name in sorted(symbols)]
        source.write_text("".join([".text\n", *lines]))
        self.compile(source, target, work)
        self.run([*self.linker, "-shared", "-soname", library, target, "-o", stub], work)
        return str(stub)


def _has_cache_folder() -> bool:
    """Whether zig can keep the C libraries that it compiles where it would by itself."""
    if folder := os.environ.get("ZIG_GLOBAL_CACHE_DIR"):
        place = Path(folder)
    else:
        base = os.environ.get("XDG_CACHE_HOME") or f"{os.environ.get('HOME', '')}/.cache"
        place = Path(base) / "zig"
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(place, os.W_OK)


def ziglang() -> tuple[str, ...] | None:
    """Return the command of the Python package ``ziglang``, if it is installed."""
    if find_spec("ziglang") is None:
        return None
    return (sys.executable, "-m", "ziglang")
