"""Reading tensors of bfloat16: their bits are the upper half of a float32's.

TVM's own pass for them does not look into values that have a name (`tirx.Let`, `tirx.Bind`): these
would be the bits taken as an integer.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx

from ..ir.passes import prim_func_pass


@prim_func_pass("WidenBrainFloats")
def WidenBrainFloats(function: tirx.PrimFunc) -> tirx.PrimFunc:  # noqa: N802
    """Convert numbers from bfloat16 by their bits; runs before TVM's passes for them."""
    return function.with_body(tvm_ffi.structural_map(function.body, (tirx.Cast, _widened)))


def _widened(cast: tirx.Cast) -> Any:
    dtype = tvm_ffi.dtype(cast.value.ty.dtype)
    if not str(dtype).startswith("bfloat16"):
        return cast
    lanes = "" if dtype.lanes == 1 else f"x{dtype.lanes}"
    bits = tirx.reinterpret(f"uint16{lanes}", cast.value).astype(f"uint32{lanes}")
    places = tirx.const(16, "uint32")
    if lanes:
        places = tirx.Broadcast(places, dtype.lanes)
    return tirx.reinterpret(f"float32{lanes}", bits << places).astype(cast.ty.dtype)
