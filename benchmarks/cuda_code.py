"""Machine code of CUDA modules in files beside them, for machines that have no compiler.

TVM keeps the source in a module and compiles it where the module is loaded.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import tvm_ffi


def _file(folder: Path, source: str) -> Path:
    return folder / f"{hashlib.sha256(source.encode()).hexdigest()[:32]}.cubin"


def keep_machine_code(folder: Path, arch: str) -> None:
    """Compile the source of every module that is made from now on with `nvcc`."""
    from tvm.support.nvcc import compile_cuda

    import tvmflow.compiler.generate  # noqa: F401 (what it does to the source comes first)

    name = "tvm_callback_cuda_postproc"
    before = tvm_ffi.get_global_func(name, allow_missing=True)

    def keep(source: str, target: object) -> str:
        source = str(before(source, target)) if before is not None else source
        code = compile_cuda(source, target_format="cubin", arch=arch, compiler="nvcc")
        _file(folder, source).write_bytes(bytes(code))
        return source

    tvm_ffi.register_global_func(name, keep, override=True)


def use_machine_code(folder: Path) -> None:
    """Take what was kept for the modules that are loaded from now on."""
    import tvm  # noqa: F401 (its import registers a compiler under the name)

    def compiled(source: str) -> bytes:
        return _file(folder, source).read_bytes()

    tvm_ffi.register_global_func("tvm_callback_cuda_compile", compiled, override=True)
