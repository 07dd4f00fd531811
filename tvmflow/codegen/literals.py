"""Floating-point constants in OpenCL C, all of their bits.

TVM writes seven digits, where fp32 numbers need up to nine: 0.012345679 is 0.01234568 to a kernel,
half a unit in the last place off.  Constants that change by that are written as their bits.
Before and after::

    x[i] * 0.012345679f             x[i] * T.call_pure_extern("as_float", 1011498623)
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm_ffi
from tvm import tirx

from ..ir.passes import prim_func_pass
from .textures import target_kind

#: By dtype: the function of OpenCL C that reads bits, and their integer type.
_FROM_BITS = {"float32": ("as_float", np.int32), "float64": ("as_double", np.int64)}


@prim_func_pass("WriteLiterals")
def WriteLiterals(function: tirx.PrimFunc) -> tirx.PrimFunc:  # noqa: N802
    """Write constants that seven digits do not tell as bits; runs last, on kernels for OpenCL."""
    if target_kind(function) != "opencl":
        return function
    return function.with_body(tvm_ffi.structural_map(function.body, (tirx.FloatImm, _written)))


def _written(literal: tirx.FloatImm) -> Any:
    dtype = str(literal.ty.dtype)
    if dtype not in _FROM_BITS:
        # Half and bfloat16 have fewer digits.
        return literal
    name, integer = _FROM_BITS[dtype]
    value = np.dtype(dtype).type(literal.value)
    if not np.isfinite(value) or np.dtype(dtype).type(f"{value:e}") == value:
        return literal
    bits = tirx.const(int(value.view(integer)), np.dtype(integer).name)
    return tirx.call_pure_extern(literal.ty, name, bits)
