"""CUDA modules without a GPU: TVM's CUDA C++ compiled for the host, and a device to run it.

In a separate process (`CudaHost`) the host's memory is TVM's device ``cuda``; a module's
kernels are compiled with ``cuda_host.h`` when it is loaded.  It finds:

- accesses outside of a tensor, a shared array or a register array, misaligned vectors, and
  overflows of indices: by sanitizers;
- uninitialised values: memory is filled with NaNs, shared memory for every block;
- missing barriers: the threads between two barriers run in several orders, and all of these
  must give the same bits; asynchronous copies complete late, at once, or either way;
- barriers that only some threads reach, and asynchronous copies without a wait.
"""

from __future__ import annotations

import atexit
import ctypes
import hashlib
import json
import os
import re
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path
from shutil import which

import numpy as np

import tvmflow
from support.drivers import Runner

_FOLDER = Path(__file__).parent
_HEADERS = [_FOLDER / f"cuda_{name}.h" for name in ("host", "types", "threads", "tensor_cores")]
_NATIVE = _FOLDER.parents[1] / "native" / "tvm_plugin" / "include"
_COMPILER = shlex.split(os.environ.get("CXX", "g++"))
_SANITIZERS = [
    "-fsanitize=address,bounds,alignment,signed-integer-overflow,integer-divide-by-zero,shift",
    "-fno-sanitize-recover=all",
]
#: Whether a GPU replaces the host: real arithmetic, and no sanitizers.
ON_GPU = os.environ.get("TVMFLOW_TEST_ON_GPU", "0") not in ("", "0")
#: Orders in which the threads of a block run between two barriers.
ORDERS = ("forward", "reverse", "shuffle")


# -- from CUDA C++ to C++ ---------------------------------------------------------------------

_INCLUDE = re.compile(r"^\s*#\s*include <(?:cuda|mma|sm_61|math_constants).*>$", re.MULTILINE)
_KERNEL = re.compile(r"__global__ void(?: __launch_bounds__\([^)]*\))? (\w+)\([^;{]*\) \{")
_STATIC = re.compile(r"__shared__ (alignas\(\d+\) )?([\w:]+) (\w+)\[(\d+)\];")
_DYNAMIC = re.compile(r"extern __shared__ (?:__align__\(\d+\) )?([\w:]+) (\w+)\[\];")
_ADDRESS = re.compile(r"unsigned int (\w+) = __cvta_generic_to_shared\(")
_ASM = re.compile(
    r"(?:asm|__asm__) (?:volatile|__volatile__)\s*\("
    r'(?P<text>(?:\s*"(?:[^"\\]|\\.)*")+)(?P<operands>[^;]*)\);'
)
_OPERAND = re.compile(r'"\w"\(([^()]*)\)')
#: TVM's PTX for copies to shared memory during computation, and host functions for it.
_PTX = {
    r"cp\.async\.commit_group;": "CommitGroup()",
    r"cp\.async\.wait_group (\d+);": "WaitGroup({0})",
    r"cp\.async\.c[ag]\.shared\.global \[%0\], \[%1\], %2;": "CopyAsync({0}, {1}, {2}, false)",
    r"cp\.async\.c[ag]\.shared\.global \[%0\], \[%1\], %2, %3;": (
        "CopyAsync({0}, {1}, {2}, ({3}) == 0)"
    ),
}
#: Calls that make threads of a kernel wait for each other.
_COOPERATES = re.compile(r"__sync|__shfl|ptx_")


def _of_ptx(found: re.Match[str]) -> str:
    """Return the host call that replaces inline assembly."""
    pieces = re.findall(r'"((?:[^"\\]|\\.)*)"', found["text"])
    text = " ".join("".join(pieces).replace("\\n", " ").split())
    for pattern, call in _PTX.items():
        if matched := re.fullmatch(pattern, text):
            operands = matched.groups() or _OPERAND.findall(found["operands"])
            return f"cuda_host::{call.format(*operands)};"
    # TVM's headers may contain PTX that no kernel runs.
    return f"cuda_host::Fail({json.dumps(f'the host has nothing for the PTX: {text}')});"


def translate(source: str, tags: Mapping[str, list[int]]) -> str:
    """Return C++ of a library for TVM whose functions are the kernels of a CUDA source.

    Parameters
    ----------
    source
        CUDA source as TVM generates it.
    tags
        For each kernel, the kinds of the extents after its arguments, as in ``cuda_host.h``.
    """
    source = _INCLUDE.sub("", source)
    source = _STATIC.sub(
        r"\1static \2 \3[\4]; static cuda_host::Shared \3_shared(\3, sizeof(\3));", source
    )
    source = _DYNAMIC.sub(r"\1* \2 = static_cast<\1*>(cuda_host::DynamicShared());", source)
    source = _ASM.sub(_of_ptx, _ADDRESS.sub(r"void* \1 = (", source))
    if left := re.search(r"__shared__[^;]*", source):
        raise NotImplementedError(f"cuda_host.py cannot translate: {left.group()}")
    starts = list(_KERNEL.finditer(source))
    ends = [found.start() for found in starts[1:]] + [len(source)]
    entries = []
    for found, end in zip(starts, ends, strict=True):
        name, body = found.group(1), source[found.start() : end]
        cooperates = "true" if _COOPERATES.search(body) else "false"
        entries.append(f"CUDA_HOST_KERNEL({', '.join([name, cooperates, *map(str, tags[name])])})")
    header = '#include "cuda_host.h"\n'
    if "nvcuda::" in source:
        header += '#include "cuda_tensor_cores.h"\n'
    return "\n".join([header, source, *entries, ""])


class _Bytes:
    """Reads the serialized form of TVM's CUDA modules: see ``native/tvm_plugin``."""

    def __init__(self, data: bytes):
        self._data, self._at = data, 0

    def number(self, size: int = 8) -> int:
        self._at += size
        return int.from_bytes(self._data[self._at - size : self._at], "little")

    def text(self) -> bytes:
        size = self.number()
        self._at += size
        return self._data[self._at - size : self._at]

    def texts(self) -> list[str]:
        return [self.text().decode() for _ in range(self.number())]


_TAGS = [f"{kind}.{axis}" for kind in ("blockIdx", "threadIdx") for axis in "xyz"]
_TAGS.append("tirx.use_dyn_shared_memory")


def parse(data: bytes) -> tuple[str, dict[str, list[int]]]:
    """Return the source in a serialized CUDA module, and the tags of its kernels."""
    reader = _Bytes(data)
    form = reader.text().decode()
    assert form == "cuda", f"a module of {form}, not of source"
    tags = {}
    for _ in range(reader.number()):
        name = reader.text().decode()
        reader.text()
        for _ in range(reader.number()):
            reader.number(4)
        tags[name] = [_TAGS.index(tag) for tag in reader.texts()]
        for _ in range(reader.number()):
            reader.number(4)
    return reader.text().decode(), tags


# -- compiling it ------------------------------------------------------------------------------


def _compile(source: str, *options: str) -> Path:
    """Compile C++ to a shared library, or reuse an earlier build."""
    import tvm
    import tvm_ffi

    includes = [
        f"-I{_FOLDER}",
        f"-I{_NATIVE}",
        f"-isystem{Path(tvm.__file__).parent / 'include'}",
        f"-isystem{Path(tvm_ffi.__file__).parent / 'include'}",
    ]
    command = [*_COMPILER, "-x", "c++", "-", "-shared", "-fPIC"]
    command += ["-fno-strict-aliasing", "-fno-omit-frame-pointer", "-w", *options]
    headers = b"".join(header.read_bytes() for header in _HEADERS)
    key = hashlib.sha256(repr(command).encode() + headers + source.encode()).hexdigest()
    library = Path(os.environ["TVMFLOW_CACHE_DIR"]) / f"cuda_host_{key[:32]}.so"
    if not library.exists():
        library.parent.mkdir(parents=True, exist_ok=True)
        fresh = library.with_suffix(f".{os.getpid()}")
        done = subprocess.run(
            [*command, *includes, "-o", str(fresh)],
            input=source,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            library.with_suffix(".cc").write_text(source)
            raise RuntimeError(f"{library.with_suffix('.cc')}:\n{done.stderr[:3000]}")
        fresh.rename(library)
    return library


# -- in the process that runs modules ----------------------------------------------------------


def install() -> None:
    """Make the host's memory the CUDA device of this process."""
    import tvm_ffi

    ctypes.CDLL(
        str(_compile((_FOLDER / "cuda_device.cc").read_text(), "-O2", "-std=c++20")),
        ctypes.RTLD_GLOBAL,
    )

    @tvm_ffi.register_global_func("ffi.Module.load_from_bytes.cuda", override=True)
    def load(data: bytes) -> tvm_ffi.Module:
        library = _compile(translate(*parse(bytes(data))), "-O0", "-std=c++17", *_SANITIZERS)
        return tvm_ffi.load_module(str(library))


def run(module: tvmflow.Module, feeds: Mapping[str, np.ndarray]) -> tvmflow.Outputs:
    """Run a module in all orders of threads, with other inputs in between."""
    first: tvmflow.Outputs | None = None
    for order in ORDERS:
        os.environ["CUDA_HOST_ORDER"] = order
        if module.metadata["options"].get("cuda_graph"):
            # A CUDA graph keeps addresses: results of another run must not leak into this one.
            module({name: np.roll(value, 1) for name, value in feeds.items()})
        outputs = module(feeds)
        first = first or outputs
        for info in module.outputs:
            same = outputs[info.name].tobytes() == first[info.name].tobytes()
            assert same, f"{info.name} depends on the order of threads: {ORDERS[0]} or {order}"
    assert first is not None
    return first


# -- in the process of the test ----------------------------------------------------------------


def _library_of_compiler(name: str) -> str:
    """Return the path of a library of the compiler, or the name alone if there is none."""
    command = [*_COMPILER, f"-print-file-name={name}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def missing() -> str | None:
    """Return why kernels cannot be compiled for the host, or ``None``."""
    if ON_GPU:
        return None
    if not which(_COMPILER[0]):
        return f"the C++ compiler {_COMPILER[0]} is not installed"
    if "/" not in _library_of_compiler("libasan.so"):
        return f"{_COMPILER[0]} has no address sanitizer"
    return None


def environment() -> dict[str, str]:
    """Return variables for a process that runs modules on the host."""
    # Python is not built with the sanitizer, which must be loaded first; it catches exceptions
    # only of a C++ library that is loaded at the start.
    libraries = [_library_of_compiler(name) for name in ("libasan.so", "libstdc++.so")]
    options = "detect_leaks=0:detect_stack_use_after_return=0:quarantine_size_mb=8"
    return {"LD_PRELOAD": ":".join(libraries), "ASAN_OPTIONS": options}


class CudaHost:
    """A process that runs CUDA modules, many in turn."""

    def __init__(self) -> None:
        if ON_GPU:
            self._runner = Runner({})
            return
        self._runner = Runner(environment(), hook=__name__)

    @property
    def alive(self) -> bool:
        """Return whether the process can run another module."""
        return self._runner.alive

    def __call__(
        self, module: tvmflow.Module, feeds: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Return the outputs of a module, by name.

        Raises
        ------
        AssertionError
            With the faults that were found.
        """
        return self._runner(module.path, feeds)

    def close(self) -> None:
        """End the process."""
        self._runner.close()


_running: list[CudaHost] = []


def cuda_host() -> CudaHost:
    """Return the process for this test process; start one if a kernel has ended the last."""
    if not _running or not _running[-1].alive:
        _running.append(CudaHost())
        atexit.register(_running[-1].close)
    return _running[-1]
