"""Machine code of CUDA modules in a folder next to them, for machines that have no compiler."""

from __future__ import annotations

import os
from pathlib import Path

import tvm_ffi


def use_machine_code(folder: Path) -> None:
    """Take what is kept in a folder for the modules that are loaded from now on."""
    os.environ["TVMFLOW_CACHE_DIR"] = str(folder)


def keep_machine_code(folder: Path, arch: str) -> None:
    """Compile the source of every module that is made from now on."""
    import tvmflow.compiler.generate  # noqa: F401 (what it does to the source comes first)
    from tvmflow.runtime.cuda_compiler import compile_for

    use_machine_code(folder)
    name = "tvm_callback_cuda_postproc"
    before = tvm_ffi.get_global_func(name, allow_missing=True)

    def keep(source: str, target: object) -> str:
        source = str(before(source, target)) if before is not None else source
        compile_for(source, arch)
        return source

    tvm_ffi.register_global_func(name, keep, override=True)
