"""Programs for other processors, compiled by Zig, and Android's libraries for them on glibc."""

from __future__ import annotations

from pathlib import Path

from support.commands import run
from support.fake_opencl import SOURCES
from tvmflow.module.link import ziglang

NATIVE = Path(__file__).parents[2] / "native"
FOLDER = SOURCES.with_name("arm64")


class Cross:
    """A compiler for Linux on a processor; ``target`` is Zig's, newer than libraries need."""

    def __init__(self, target: str, folder: Path):
        self._target, self.folder = target, folder

    def compile(self, name: str, *arguments: object) -> Path:
        """Compile C, and return the output in the folder."""
        zig = ziglang()
        assert zig is not None
        flags = ("-target", self._target, "-std=gnu11", "-O1")
        run(*zig, "cc", *flags, "-o", self.folder / name, *arguments)
        return self.folder / name

    def program(self) -> Path:
        """Return the program that uses a library."""
        flags = (f"-I{NATIVE / 'bindings'}", "-ldl", "-pthread")
        return self.compile("use_library", FOLDER / "use_library.c", *flags)

    def driver(self, *arguments: object) -> Path:
        """Return the fake OpenCL driver; arguments may be more sources and flags."""
        flags = ("-shared", "-fPIC", "-fvisibility=hidden", f"-I{NATIVE / 'core'}", "-pthread")
        sources = sorted(SOURCES.glob("*.c"))
        return self.compile("libOpenCL.so", *flags, *sources, f"-I{SOURCES}", *arguments)

    def android(self) -> dict[str, str]:
        """Return variables that preload libraries with Android's names before glibc's."""
        (self.folder / "libdl.c").touch()
        # The linker drops a library that is not called.
        called = "float rintf(float);\nfloat (*called)(float) = rintf;\n"
        (self.folder / "libm.c").write_text(called)
        for name, source in (
            ("libc", FOLDER / "bionic.c"),
            ("libdl", self.folder / "libdl.c"),
            ("libm", self.folder / "libm.c"),
        ):
            own = ("-shared", "-fPIC", f"-Wl,-soname,{name}.so", "-lm")
            self.compile(f"{name}.so", source, *own)
        libc = self.folder / "libc.so"
        return {"LD_LIBRARY_PATH": str(self.folder), "LD_PRELOAD": str(libc)}
