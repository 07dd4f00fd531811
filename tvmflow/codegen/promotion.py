"""Narrow integers in C: sums of 8 and 16 bits that wrap around, where C makes them wider.

C computes with ``int`` what is narrower, so that ``~x`` of a ``uchar`` is negative and ``x + y`` of
two passes 255.  TIR, LLVM and vectors of OpenCL C wrap around.  Where the result is stored in its
own type nothing is lost; where the same kernel converts or compares it, it is another number.
:func:`WrapNarrow` says what C does, and converts the result back::

    T.Cast("float32", x + y)        T.Cast("float32", T.Cast("uint8", int32(x) + int32(y)))
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx

from ..ir.passes import prim_func_pass
from .textures import target_kind

_NARROW = ("int8", "uint8", "int16", "uint16")
#: Sources in C; what LLVM generates does as TIR says.
_TARGETS = ("opencl", "cuda")
#: Operations whose results may leave the type.
_OPERATIONS = (tirx.Add, tirx.Sub, tirx.Mul, tirx.LShift, tirx.BitwiseNot)


@prim_func_pass("WrapNarrow")
def WrapNarrow(function: tirx.PrimFunc) -> tirx.PrimFunc:  # noqa: N802
    """Compute with narrow integers as TIR does; runs once vectors are made, which do so anyway."""
    if target_kind(function) not in _TARGETS:
        return function
    return function.with_body(tvm_ffi.structural_map(function.body, (_OPERATIONS, _wrapped)))


def _wrapped(node: Any) -> Any:
    dtype = str(node.ty.dtype)
    if dtype not in _NARROW:
        return node
    operands = [node.a] if isinstance(node, tirx.BitwiseNot) else [node.a, node.b]
    return tirx.Cast(dtype, type(node)(*(tirx.Cast("int32", operand) for operand in operands)))
