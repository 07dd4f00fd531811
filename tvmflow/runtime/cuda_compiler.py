"""Compilation of CUDA kernels, which modules store as source, for the GPU that loads them.

TVM's own callback uses ``--use_fast_math``, which changes results: numbers below 1.2e-38 and
quotients by numbers above 8.5e37 become 0, `tanh` is off by 5e-4, `sin` of large numbers has no
correct digit.  Here functions and quotients are as accurate as in CUDA C++, and machine code is
cached.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ..errors import DeviceError, KernelBuildError
from .caches import program_cache
from .regular_files import read_bytes, write_new
from .tvm_devices import cuda_gpus

_OPTIONS = ("-O3", "-std=c++17", "--fatbin")


def compile_source(source: str) -> bytes:
    """Return the machine code of kernels for the GPUs of this machine.

    Raises `DeviceError` if there is no compiler, and `KernelBuildError` if it refuses the source.
    """
    capabilities = {str(gpu.compute_version) for gpu in cuda_gpus()}
    return compile_for(source, *sorted(f"sm_{c.replace('.', '')}" for c in capabilities))


def compile_for(source: str, *chips: str) -> bytes:
    """Return the machine code of kernels for GPUs such as ``sm_90``; errors as `compile_source`.

    Machine code is cached next to OpenCL programs (``TVMFLOW_CACHE_DIR``); cached code needs no
    compiler.
    """
    folder = program_cache("cuda")
    text = "\0".join([source, *chips, *_OPTIONS])
    kept = folder and folder / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.fatbin"
    if kept:
        with suppress(OSError):
            return read_bytes(kept)
    with tempfile.TemporaryDirectory(prefix="tvmflow-cuda-") as work:
        written, code = Path(work, "kernels.cu"), Path(work, "kernels.fatbin")
        written.write_text(source)
        targets = [f"-gencode=arch=compute_{c[3:]},code={c}" for c in chips]
        command = [find_tool("nvcc"), *_OPTIONS, *targets, str(written), "-o", str(code)]
        run_tool(command, f"nvcc refused the kernels for {' and '.join(chips)},")
        result = code.read_bytes()
        if kept:
            # A full or missing folder only means that the next load compiles again.
            with suppress(OSError):
                kept.parent.mkdir(parents=True, exist_ok=True)
                part = kept.with_suffix(f".{os.getpid()}")
                write_new(part, result)
                part.replace(kept)
    return result


def find_tool(name: str) -> str:
    """Find one of CUDA's tools on the path or in NVIDIA's Python packages, or `DeviceError`."""
    packages = Path(sysconfig.get_path("platlib")) / "nvidia"
    for path in (shutil.which(name), *map(str, sorted(packages.glob(f"*/bin/{name}")))):
        if path is not None:
            return path
    package = "nvidia-cuda-nvcc" if name == "nvcc" else f"nvidia-cuda-{name}"
    raise DeviceError(
        f"Compiling for NVIDIA's GPUs failed: {name} was expected on the path or in NVIDIA's "
        "Python packages, and it is in neither.",
        remedy=f"python -m pip install {package}",
    )


def run_tool(command: Sequence[str], failed: str) -> str:
    """Run one of CUDA's tools; return what it prints.

    Raises `KernelBuildError` if it fails; ``failed`` begins its sentence.
    """
    done = subprocess.run(command, check=False, capture_output=True, text=True, errors="replace")
    if done.returncode:
        raise KernelBuildError(
            f"{failed} with status {done.returncode}.",
            remedy="Check that its version knows this GPU; what is below is what it said.",
            details=(done.stderr or done.stdout).strip()[-2000:],
        )
    return done.stdout + done.stderr
