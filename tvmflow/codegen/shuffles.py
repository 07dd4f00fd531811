"""Lanes of vectors in another order, `tirx.Shuffle`, in OpenCL C.

TVM writes constructors as in C++, ``float16(a[0], b[0], ...)``, which OpenCL C has not.  Here a
shuffle is a call of a function whose name says which lanes it takes::

    T.Shuffle([a, b], [0, 4, 1, 5])         tvmflow_shuffle_float4x2_0_4_1_5(a, b)

The functions are put before the kernels that call them.
"""

from __future__ import annotations

import re
from typing import Any

import tvm_ffi
from tvm import tirx

from ..ir.passes import prim_func_pass
from .textures import target_kind

#: Of the functions' names; type, lanes and number of the vectors and the lanes taken follow.
_PREFIX = "tvmflow_shuffle_"
_NAME = re.compile(rf"\b{_PREFIX}([a-z]+)(\d+)x(\d+)((?:_\d+)+)\b")
#: OpenCL C's names of element types.
_TYPES = {"float32": "float", "int32": "int"}


@prim_func_pass("NameShuffles")
def NameShuffles(function: tirx.PrimFunc) -> tirx.PrimFunc:  # noqa: N802
    """Call functions for shuffles where the target is OpenCL."""
    if target_kind(function) != "opencl":
        return function
    return function.with_body(tvm_ffi.structural_map(function.body, (tirx.Shuffle, _called)))


def _called(shuffle: tirx.Shuffle) -> Any:
    if len(shuffle.indices) == 1:
        return shuffle
    dtype = tvm_ffi.dtype(shuffle.vectors[0].ty.dtype)
    kind = _TYPES[str(dtype).removesuffix(f"x{dtype.lanes}")]
    lanes = "".join(f"_{int(index)}" for index in shuffle.indices)
    name = f"{_PREFIX}{kind}{dtype.lanes}x{len(shuffle.vectors)}{lanes}"
    return tirx.call_pure_extern(shuffle.ty, name, *shuffle.vectors)


def with_shuffles(source: str) -> str:
    """A kernel's source behind the functions that it calls."""
    found = sorted({match.group(): match for match in _NAME.finditer(source)}.items())
    return "".join(_function(match) for _, match in found) + source


def _function(match: re.Match[str]) -> str:
    kind, width, count = match[1], int(match[2]), int(match[3])
    taken = [int(lane) for lane in match[4].split("_")[1:]]
    vectors = "abcdefghijklmnop"[:count]
    parameters = ", ".join(f"{kind}{width} {vector}" for vector in vectors)
    lanes = ", ".join(f"{vectors[lane // width]}.s{lane % width:x}" for lane in taken)
    result = f"{kind}{len(taken)}"
    guard = match.group().upper()
    return (
        f"#ifndef {guard}\n#define {guard}\n"
        f"inline {result} {match.group()}({parameters}) {{ return ({result})({lanes}); }}\n"
        "#endif\n"
    )
