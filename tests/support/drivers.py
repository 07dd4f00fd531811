"""OpenCL drivers that may be installed, and module files run on them.

A process has one OpenCL library, chosen by environment variables before its first use, and
starts for seconds: a `Runner` is a process with one driver that stays for many modules.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from ctypes.util import find_library
from dataclasses import dataclass, replace
from glob import glob
from pathlib import Path

import numpy as np

from support.commands import output

#: Whether only packages of `make test` count as installed, as on a newcomer's machine.
ONLY_PIP = os.environ.get("TVMFLOW_TEST_ONLY_PIP", "0") not in ("", "0")


@dataclass(frozen=True)
class Driver:
    """An OpenCL driver that may be installed."""

    name: str
    #: Pattern of its library's path, or its soname.
    library: str
    environment: tuple[tuple[str, str], ...] = ()

    @property
    def path(self) -> str | None:
        """Return the library, ``None`` if it is not installed."""
        if ONLY_PIP and not self.library.startswith((_SITE, sys.prefix)):
            return None
        if "/" in self.library:
            return next(iter(sorted(glob(self.library))), None)
        try:
            ctypes.CDLL(self.library)
        except OSError:
            return None
        return self.library

    def variables(self, path: str) -> dict[str, str]:
        """Return the environment that selects the driver."""
        return {
            "TVMFLOW_OPENCL_LIBRARY": path,
            "TVMFLOW_OPENCL_DEVICE": "",
            **dict(self.environment),
        }


_SITE = next((path for path in sys.path if path.endswith("site-packages")), sys.prefix)

DRIVERS = [
    Driver("system-pocl", "/usr/lib/*/libpocl.so.2*"),
    Driver("intel", f"{sys.prefix}/lib/libintelocl.so"),
    Driver("rusticl", "libRusticlOpenCL.so.1", (("RUSTICL_ENABLE", "llvmpipe"),)),
    Driver("oclgrind", "/usr/lib*/oclgrind/liboclgrind-rt-icd.so"),
]
POCL, INTEL = DRIVERS[:2]
#: Drivers without vectorisation across work-items, two thirds of an Intel build, a tenth of PoCL's.
INTEL_QUICK = Driver("intel-quick", INTEL.library, (("CL_CONFIG_CPU_VECTORIZER_MODE", "1"),))
_POCL_QUICK = (("POCL_WORK_GROUP_METHOD", "loops"),)


def processor_drivers(*, quick: bool) -> list[Driver]:
    """Return those of PoCL and Intel's runtime that are installed.

    If ``TVMFLOW_OPENCL_LIBRARY`` is set, its driver is the only one.
    """
    if chosen := os.environ.get("TVMFLOW_OPENCL_LIBRARY"):
        return [Driver("chosen", chosen)]
    quickly = [replace(POCL, environment=_POCL_QUICK), INTEL_QUICK]
    return [driver for driver in (quickly if quick else [POCL, INTEL]) if driver.path]


def system_loader() -> str | None:
    """Return the system's OpenCL library, which opens drivers, if there is one."""
    return None if ONLY_PIP else find_library("OpenCL")


def for_programs() -> dict[str, str]:
    """Return variables with which a program outside of Python finds an OpenCL driver.

    They select Intel's runtime from pip if it is installed, with the folder of the libraries
    that it opens by bare name; otherwise the system's drivers.
    """
    path = INTEL.path
    if os.environ.get("TVMFLOW_OPENCL_LIBRARY") or path is None:
        return {}
    folders = [str(Path(path).parent), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    return {"TVMFLOW_OPENCL_LIBRARY": path, "LD_LIBRARY_PATH": ":".join(folders)}


def run_program(*command: object, **env: str) -> str:
    """Run a compiler, or a program that finds an OpenCL driver; return its output."""
    return output(*command, **{**for_programs(), **env})


class Runner:
    """A process that runs module files.

    Parameters
    ----------
    env
        Variables to set in addition to those of this process.
    under
        Command that runs the process's own command as its arguments.
    hook
        Module that prepares the process (``install``) and runs modules (``run``).
    """

    def __init__(self, env: Mapping[str, str], under: Sequence[str] = (), hook: str = ""):
        # The output goes to a file, because a pipe that is not read fills up.
        self._stderr = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            [*under, sys.executable, str(Path(__file__).with_name("run_modules.py")), hook],
            env={**os.environ, **env},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
        )

    def __call__(
        self, module: str | os.PathLike[str], feeds: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Return the outputs of a module, by name.

        Raises
        ------
        AssertionError
            With the process's output, if the module fails or crashes the process.
        """
        assert self._process.stdin
        assert self._process.stdout
        try:
            pickle.dump((str(module), dict(feeds)), self._process.stdin)
            self._process.stdin.flush()
            outputs, error = pickle.load(self._process.stdout)
        except (EOFError, BrokenPipeError):
            status = self._process.wait()
            raise AssertionError(f"the process ended with {status}:\n{self.output()}") from None
        assert error is None, error
        return outputs

    @property
    def alive(self) -> bool:
        """Return whether the process can run another module."""
        return self._process.poll() is None

    def output(self, start: int = 0) -> str:
        """Return the output from this byte on, of the process or its wrapper."""
        # Read by offset, so that the shared file position stays at the end.
        size = os.fstat(self._stderr.fileno()).st_size
        return os.pread(self._stderr.fileno(), size - start, start).decode(errors="replace")

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        self._stderr.close()
