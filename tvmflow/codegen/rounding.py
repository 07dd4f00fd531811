"""Floats to integers, to even, where limits are known: one addition.

Between 2^23 and 2^24 fp32 numbers are the integers, so that adding some 1.5 · 2^23 rounds, and the
sum's lowest bits count up with the integer::

    int32(nearbyint(max(min(x, 255), 0)))    reinterpret(int32, max(min(x, 255), 0) + shift) - bits

Drivers have no better way for all devices: PoCL takes ``rint`` of a vector apart into comparisons
that are of use beyond 2^23 only, two thirds of a quantized layer's epilogue.

What becomes an integer by whatever way gets a lower limit that holds for NaN, too
(:func:`.extremes.at_least`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Call, Op

from ..ir.passes import prim_func_pass
from .extremes import at_least, never_nan

_ROUND = Op.get("tirx.nearbyint")
# Every target rounds whole vectors, to even; TVM's operator does not say so.
tvm.ir.register_op_attr(_ROUND.name, "TVectorizable", True)

#: Operators of one float whose result is NaN where that is.
_TO_WHOLE = tuple(
    map(Op.get, ("tirx.nearbyint", "tirx.round", "tirx.floor", "tirx.trunc", "prim.ceil"))
)
_INTEGERS = (tvm_ffi.dtype("int32").type_code, tvm_ffi.dtype("uint32").type_code)

#: An even number of seven digits: TVM writes no more into OpenCL C.
_SHIFT = 12582910
_BITS = int(np.float32(_SHIFT).view(np.int32))
#: Sums of numbers up to here are between 2^23 and 2^24.
_LARGEST = 2**22


@prim_func_pass("RoundByAddition")
def RoundByAddition(function: tirx.PrimFunc) -> tirx.PrimFunc:  # noqa: N802
    """Round numbers within limits by an addition; runs on scalars, before they become vectors."""
    return function.with_body(tvm_ffi.structural_map(function.body, [(tirx.Cast, _added)]))


def _added(cast: tirx.Cast) -> Any:
    if tvm_ffi.dtype(cast.ty.dtype).type_code not in _INTEGERS:
        return cast
    rounded, kind = cast.value, cast.ty.dtype
    if isinstance(rounded, Call) and rounded.op.same_as(_ROUND) and str(kind) == "int32":
        value = rounded.args[0]
        if _is_limited(value):
            shifted = _with_lower_limit(value) + tirx.const(_SHIFT, "float32")
            return tirx.reinterpret("int32", shifted) - _BITS
    return tirx.Cast(kind, _with_lower_limit(rounded))


def _with_lower_limit(value: Any) -> Any:
    """A float that becomes an integer, its lower limit where it is NaN."""
    if isinstance(value, Call) and value.op in _TO_WHOLE:
        return Call(value.op, [_with_lower_limit(value.args[0])], ret_ty=value.ty)
    if isinstance(value, tirx.Max) and never_nan(value.b):
        return at_least(value.a, value.b)
    if isinstance(value, tirx.Min) and never_nan(value.b):
        return tirx.Min(_with_lower_limit(value.a), value.b)
    return value


def _is_limited(value: Any) -> bool:
    """Whether an fp32 number has a lower and an upper limit that are small enough."""
    kinds = set()
    while isinstance(value, (tirx.Max, tirx.Min)) and str(value.ty.dtype) == "float32":
        if not (isinstance(value.b, tirx.FloatImm) and abs(value.b.value) <= _LARGEST):
            return False
        kinds.add(type(value))
        value = value.a
    return len(kinds) == 2
