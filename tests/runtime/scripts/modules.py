"""Modules and kernels that the runtime's tests run; imported by the scripts next to it."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import NamedTuple

import tvm
import tvm_ffi

_DTYPES = {"handle": (3, 64), "int32": (0, 32), "int64": (0, 64), "float32": (2, 32)}
_DTYPES |= {"float16": (2, 16), "uint8": (1, 8), "int16": (0, 16), "float64": (2, 64)}


class CacheStatistics(NamedTuple):
    """Cache counters of this process: programs read, missed, rebuilt because they were damaged or
    refused, and written.
    """

    hits: int
    misses: int
    rebuilt: int
    stored: int


def cache_statistics() -> CacheStatistics:
    return CacheStatistics(**json.loads(tvm_ffi.get_global_func("tvmflow.opencl.cache_stats")()))


def prebuild(module: tvm.runtime.Module) -> int:
    """Build all kernels of a module for the first device, and store them in the cache."""
    return int(tvm_ffi.get_global_func("tvmflow.opencl.prebuild")(module, 0))


def _text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def module_bytes(
    source: str, functions: dict[str, tuple[Sequence[str], Sequence[str]]], *, form: str = "cl"
) -> bytes:
    """Serialize an OpenCL module.

    Parameters
    ----------
    source
        OpenCL C with a line ``// Function: NAME`` before each kernel.
    functions
        For each kernel the dtypes of its arguments and its launch parameters
        (``blockIdx.x``, ``threadIdx.x``, ...).
    """
    data = _text(form.encode()) + struct.pack("<Q", len(functions))
    for name, (dtypes, tags) in functions.items():
        data += _text(name.encode()) * 2 + struct.pack("<Q", len(dtypes))
        for dtype in dtypes:
            data += struct.pack("<BBH", *_DTYPES[dtype], 1)
        data += struct.pack("<Q", len(tags)) + b"".join(_text(tag.encode()) for tag in tags)
        data += struct.pack("<Q", 0)
    return data + _text(source.encode())


def load(data: bytes) -> tvm_ffi.Module:
    """Load a serialized OpenCL module."""
    return tvm_ffi.get_global_func("ffi.Module.load_from_bytes.opencl")(data)


def kernel_module(
    kernels: dict[str, str], dtypes: Sequence[str] = ("handle", "handle"), **changes: str
) -> tvm_ffi.Module:
    """Return a module of kernels that all have the same arguments and run in one dimension."""
    source = "".join(f"// Function: {name}\n{text}\n" for name, text in kernels.items())
    functions = dict.fromkeys(kernels, (dtypes, ("blockIdx.x", "threadIdx.x")))
    return load(module_bytes(source, functions, **changes))


def scale_kernel(name: str, factor: float) -> str:
    """Return the source of a kernel that multiplies its first argument into its second."""
    return (
        f"__kernel void {name}(__global const float* x, __global float* y) {{\n"
        f"  y[get_global_id(0)] = x[get_global_id(0)] * {float(factor)}f;\n"
        "}"
    )


def scale_module(count: int = 3) -> tvm_ffi.Module:
    """Return a module of kernels ``scale1``, ``scale2``, ... that multiply by their number."""
    numbers = range(1, count + 1)
    return kernel_module({f"scale{i}": scale_kernel(f"scale{i}", i) for i in numbers})


def first_device() -> tvm.runtime.Device:
    """Return ``opencl:0``."""
    return tvm.device("opencl", 0)
