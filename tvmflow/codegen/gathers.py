"""Vectors of bytes in OpenCL C, from places that are not one after another, or not aligned.

TVM packs both into one integer, as in CUDA, which OpenCL C does not take for a vector: `vstore4`
repeats it.  Here they are read by macros, where the target is OpenCL::

    x[T.Ramp(0, 9, 4)]        tvmflow_gather_char4(T.Ramp(0, 9, 4), x)       names each one
    x[T.Ramp(10, 1, 4)]       tvmflow_load_char4(10, x)                      vload4
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir.expr import TensorLoad

from ..ir.passes import prim_func_pass
from .textures import target_kind

PREFIX = "tvmflow_gather_"
LOAD = "tvmflow_load_"
_ONE = tirx.const(1, "int32")
_TYPES = {"int8": "char", "uint8": "uchar"}


@prim_func_pass("NameGathers")
def NameGathers(function: tirx.PrimFunc) -> tirx.PrimFunc:  # noqa: N802
    """Call macros for vectors of bytes; runs on vectors, over flat buffers."""
    if target_kind(function) != "opencl":
        return function
    return function.with_body(tvm_ffi.structural_map(function.body, (TensorLoad, _called)))


def _called(load: TensorLoad) -> Any:
    dtype = tvm_ffi.dtype(load.ty.dtype)
    kind = _TYPES.get(str(dtype).removesuffix(f"x{dtype.lanes}"))
    if kind is None or dtype.lanes == 1:
        return load
    (index,) = load.indices
    name, place = PREFIX, index
    if isinstance(index, tirx.Ramp) and tvm_ffi.structural_equal(index.stride, _ONE):
        name, place = LOAD, index.base
    return tirx.call_pure_extern(load.ty, f"{name}{kind}{dtype.lanes}", place, load.source.data)


def _macros() -> str:
    lines = []
    for kind in _TYPES.values():
        for lanes in (2, 4, 8, 16):
            each = ", ".join(f"(p)[(i).s{lane:x}]" for lane in range(lanes))
            lines.append(f"#define {PREFIX}{kind}{lanes}(i, p) (({kind}{lanes})({each}))\n")
            lines.append(f"#define {LOAD}{kind}{lanes}(i, p) vload{lanes}(0, (p) + (i))\n")
    return "".join(lines)


def with_macros(source: str) -> str:
    """A kernel's source behind the macros that it calls."""
    return _macros() + source if PREFIX in source or LOAD in source else source
