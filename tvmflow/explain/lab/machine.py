"""What this machine has: memory, and the library that multiplies for NumPy."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from ...ir.units import counted


def host_bytes() -> int:
    """Memory that can be had without swapping."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def prepare_threads(cores: int) -> None:
    """Have TVM's threads be as many as OpenBLAS', and sleep while they have no work.

    TVM leaves half of the processors out, which might be hyper-threads, and its threads ask for
    work for 0.1 s before they sleep, on the processor that NumPy's next call would take.  What
    the user has set stays; threads that run already are not changed.
    """
    os.environ.setdefault("TVM_THREAD_POOL_SPIN_COUNT", "0")
    if "OMP_NUM_THREADS" not in os.environ:
        os.environ.setdefault("TVM_NUM_THREADS", str(cores))


def numpy_name() -> str:
    """NumPy and its BLAS with their versions, and what the BLAS has chosen for this CPU."""
    config: dict[str, Any] = np.show_config(mode="dicts")  # type: ignore[assignment]
    blas = config.get("Build Dependencies", {}).get("blas", {})
    parts = [f"NumPy {np.__version__}", f"{blas.get('name', '')} {blas.get('version', '')}".strip()]
    return ", ".join(filter(None, [*parts, _openblas()]))


def _openblas() -> str:
    """Kernels and threads of the OpenBLAS that NumPy's wheels bring; empty with another BLAS."""
    # Its symbols are found through the module that is linked with it.
    module = sys.modules.get("numpy._core._multiarray_umath")
    if module is None or module.__file__ is None:
        return ""
    library = ctypes.CDLL(module.__file__)
    try:
        name = library.scipy_openblas_get_corename64_
        threads = library.scipy_openblas_get_num_threads64_
    except AttributeError:
        return ""
    name.restype = ctypes.c_char_p
    return f"{name().decode()} kernels, {counted(int(threads()), 'thread')}"
