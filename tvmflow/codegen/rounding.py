"""Rounding that is the same on every target: of floats to integers, and of fp32 arithmetic.

*Floats to integers*, to even, if limits are known: one addition (:func:`RoundByAddition`).
Between 2^23 and 2^24 fp32 numbers are the integers, so that adding some 1.5 · 2^23 rounds, and the
lowest bits of the sum are the integer plus a constant::

    int32(nearbyint(max(min(x, 255), 0)))    reinterpret(int32, max(min(x, 255), 0) + shift) - bits

Drivers have no faster way for all devices: PoCL expands ``rint`` of a vector into comparisons that
are only needed beyond 2^23, and take two thirds of a quantized layer's epilogue.  Every number that
is converted to an integer gets a lower limit that also holds for NaN (:func:`.at_least`).

*Arithmetic that is rounded once per operation*: the functions in OpenCL C that the operators of
:mod:`..ir.rounding` call.
"""

from __future__ import annotations

import numpy as np
import tvm
from tvm import tirx
from tvm.ir import Call

from ..ir.extremes import INTEGERS, at_least, never_nan
from ..ir.passes import node_pass
from ..ir.rewriter import op_name

_ROUND = "tirx.nearbyint"
# Every target rounds whole vectors, to even; TVM's operator is not declared vectorisable.
tvm.ir.register_op_attr(_ROUND, "TVectorizable", True)

#: Operators of one float whose result is NaN for NaN.
_TO_WHOLE = (_ROUND, "tirx.round", "tirx.floor", "tirx.trunc", "prim.ceil")

#: An even number of seven digits, as TVM writes no more digits into OpenCL C.
_SHIFT = 12582910
_BITS = int(np.float32(_SHIFT).view(np.int32))
#: Sums with numbers up to here are between 2^23 and 2^24.
_LARGEST = 2**22


@node_pass(tirx.Cast)
def RoundByAddition(cast: tirx.Cast) -> tirx.Expr:
    """Round numbers within limits by an addition; runs on scalars, before they become vectors."""
    rounded, kind = cast.value, cast.ty.dtype
    if kind.type_code not in INTEGERS:
        return cast
    if op_name(rounded) == _ROUND and kind == "int32":
        value = rounded.args[0]
        if _is_limited(value):
            shifted = _with_lower_limit(value) + tirx.const(_SHIFT, "float32")
            return tirx.reinterpret("int32", shifted) - _BITS
    return tirx.Cast(kind, _with_lower_limit(rounded))


def _with_lower_limit(value: tirx.Expr) -> tirx.Expr:
    """Return a float that becomes an integer, replaced by its lower limit if it is NaN."""
    if op_name(value) in _TO_WHOLE:
        return Call(value.op, [_with_lower_limit(value.args[0])], ret_ty=value.ty)
    if isinstance(value, tirx.Max) and never_nan(value.b):
        return at_least(value.a, value.b)
    if isinstance(value, tirx.Min) and never_nan(value.b):
        return tirx.Min(_with_lower_limit(value.a), value.b)
    return value


def _is_limited(value: tirx.Expr) -> bool:
    """Return whether an fp32 number has a lower and an upper limit that are small enough."""
    kinds = set()
    while isinstance(value, (tirx.Max, tirx.Min)) and str(value.ty.dtype) == "float32":
        if not (isinstance(value.b, tirx.FloatImm) and abs(value.b.value) <= _LARGEST):
            return False
        kinds.add(type(value))
        value = value.a
    return len(kinds) == 2


# -- arithmetic that is rounded once ------------------------------------------------------

# In a separate function without contraction, no compiler fuses a product with a sum.
_PRODUCT = """\
static inline float{n} tvmflow_exact_product{w}(float{n} a, float{n} b) {{
#pragma OPENCL FP_CONTRACT OFF
  return a * b;
}}
"""

# a - q * b, exactly if q is a / b except for some units: all products of halves of the numbers (of
# 12 bits) are exact, so that fusing does not matter.
#
# Then the quotient: after one step of Newton's method it is the nearest number or a neighbour.  It
# moves to the next number, away from zero or towards it (t), if that one is nearer: if the rest is
# more than half the distance.  In integers, as comparisons of vectors and of scalars differ.
_QUOTIENT = """\
static inline float{n} tvmflow_exact_rest{w}(float{n} a, float{n} q, float{n} b) {{
#ifdef FP_FAST_FMAF
  return fma(-q, b, a);
#else
  float{n} qh = as_float{n}(as_int{n}(q) & -4096), bh = as_float{n}(as_int{n}(b) & -4096);
  float{n} ql = q - qh, bl = b - bh;
  return ((a - qh * bh) - qh * bl - ql * bh) - ql * bl;
#endif
}}
static inline float{n} tvmflow_exact_quotient{w}(float{n} a, float{n} b) {{
  float{n} y = 1.0f / b, first = a * y;
  float{n} q = first + tvmflow_exact_rest{w}(a, first, b) * y;
  float{n} rest = tvmflow_exact_rest{w}(a, q, b);
  int{n} bits = as_int{n}(q);
  int{n} t = (as_int{n}(rest) ^ bits ^ as_int{n}(b)) >> 31;
  float{n} half_gap = as_float{n}((bits + t) & 0x7f800000) * 5.9604645e-8f * fabs(b);
  bits += (t | 1) & (as_int{n}(half_gap - fabs(rest)) >> 31);
  // Elsewhere than from 2^-30 to 2^30 it stays as it is, also infinite or no number.
  int{n} size = as_int{n}(first) & 0x7fffffff;
  int{n} stays = ((size - 0x30800000) | (0x4e800000 - size)) >> 31;
  return as_float{n}((bits & ~stays) | (as_int{n}(first) & stays));
}}
"""


#: Functions in OpenCL C for all numbers of lanes that TVM vectorises by.
_BY_LANES = "".join(
    (_PRODUCT + _QUOTIENT).format(n=lanes if lanes > 1 else "", w=lanes)
    for lanes in (1, 2, 4, 8, 16)
)
OPENCL = f"#ifndef TVMFLOW_EXACT\n#define TVMFLOW_EXACT\n{_BY_LANES}#endif\n"
