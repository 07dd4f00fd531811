"""Compile and control the fake OpenCL driver of ``module/standalone/fake_opencl``."""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import byref, c_size_t, c_uint64, c_void_p
from pathlib import Path

from support.build_cache import cached_build

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "tests" / "module" / "standalone" / "fake_opencl"
#: The runtime is C11; these warnings are errors in the tests.
FLAGS = ["-std=gnu11", "-g", "-O1", "-fPIC", "-Wall", "-Wextra", "-Wshadow", "-Werror"]


def compile_c(output: Path, *arguments: object) -> Path:
    """Compile with the machine's C compiler."""
    command = [*shlex.split(os.environ.get("CC", "cc")), *FLAGS, *map(str, arguments)]
    done = subprocess.run(
        [*command, "-o", str(output)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{shlex.join(command)}\n{done.stderr}")
    return output


def build_fake(folder: Path, *flags: str) -> Path:
    """Put a compiled ``libOpenCL.so`` into the folder."""
    headers = ROOT / "native" / "core"
    arguments = [*flags, "-shared", "-fvisibility=hidden", f"-I{headers}"]
    arguments += [*sorted(map(str, SOURCES.glob("*.c"))), "-pthread"]
    built = cached_build(
        "fake_opencl",
        [os.environ.get("CC", "cc"), *FLAGS, *arguments],
        [*SOURCES.glob("*"), *headers.glob("*.h")],
        lambda fresh: compile_c(fresh / "libOpenCL.so", *arguments),
    )
    return Path(shutil.copy(built / "libOpenCL.so", folder))


#: Flags for a driver whose objects do not begin with a table of functions.
NO_ICD = ("-DFAKE_FIRST=(void*)0x4d414c49ul",)


def build_no_icd(folder: Path, first: int) -> Path:
    """Compile a vendor's library that lacks functions; ``first`` is its platform's first word."""
    path, source = folder / f"libvendor{first}.so", Path(__file__).with_name("no_icd.c")
    return compile_c(path, f"-DFIRST={first}", "-shared", source)


class Fake(ctypes.CDLL):
    """The driver in this process, with the types of its controls."""

    def __init__(self, path: Path):
        super().__init__(str(path))
        self.changed: set[str] = set()
        for name in ("fake_failed", "fake_violations", "fake_live_text"):
            getattr(self, name).restype = ctypes.c_char_p
        for name in ("fake_count", "fake_live", "fake_memory"):
            getattr(self, name).restype = ctypes.c_uint64
        for function in self.creators:
            getattr(self, function).restype = ctypes.c_void_p

    creators = (
        "clCreateContext",
        "clCreateCommandQueue",
        "clCreateBuffer",
        "clCreateImage",
        "clCreateProgramWithSource",
        "clCreateProgramWithBinary",
        "clCreateKernel",
        "clCreateCommandBufferKHR",
        "clNewRecordingQCOM",
        "clGetExtensionFunctionAddress",
    )

    def set(self, name: str, value: str | None) -> None:
        """Change a setting; ``None`` restores the default."""
        self.changed.add(name)
        self.fake_set(name.encode(), value.encode() if value is not None else None)

    @property
    def violations(self) -> str:
        """Return the violations of the rules on arguments."""
        return self.fake_violations().decode()

    @property
    def live(self) -> str:
        """Return objects that have not been released."""
        return self.fake_live_text().decode()


@contextmanager
def checked(path: Path) -> Iterator[Fake]:
    """Yield the driver; check the rules and that nothing is left, and restore its settings."""
    fake = Fake(path)
    fake.fake_reset()
    yield fake
    assert (fake.violations, fake.live) == ("", "")
    fake.fake_reset()
    for name in fake.changed:
        fake.set(name, None)


class Application:
    """An application's context and queue on the fake driver, and buffers in it."""

    def __init__(self, driver):
        self.driver = driver
        self.platform, self.device = c_void_p(), c_void_p()
        driver.clGetPlatformIDs(1, byref(self.platform), None)
        driver.clGetDeviceIDs(self.platform, c_uint64(0xFFFFFFFF), 1, byref(self.device), None)
        made = driver.clCreateContext(None, 1, byref(self.device), None, None, None)
        self.context = c_void_p(made)
        made = driver.clCreateCommandQueue(self.context, self.device, c_uint64(0), None)
        self.queue = c_void_p(made)

    @property
    def options(self):
        """Return options of a model in the context."""
        return {"cl_context": self.context, "cl_device": self.device}

    def buffer(self, array=None, size=256):
        """Create a buffer, with a copy of an array if given."""
        flags = 1 if array is None else 1 | 1 << 5
        data = None if array is None else array.ctypes.data_as(c_void_p)
        made = self.driver.clCreateBuffer(self.context, c_uint64(flags), c_size_t(size), data, None)
        return c_void_p(made)

    def close(self):
        """Release the context and the queue."""
        self.driver.clReleaseCommandQueue(self.queue)
        self.driver.clReleaseContext(self.context)
