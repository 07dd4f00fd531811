"""``tanh`` and ``atanh`` on CPUs, as exact near zero as elsewhere.

TVM writes both by exponentials and logarithms of numbers near one, in which a small x leaves no
digits: tanh(1e-9) is 0.  Here a small x goes into a convergent of the function's continued fraction

    tanh x = x / (1 + x² / (3 + x² / (5 + …)))
    atanh x = x / (1 - x² / (3 - 4x² / (5 - 9x² / (7 - …))))

(J. H. Lambert 1761, C. F. Gauss 1813), which is one division of polynomials in x².
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm_ffi
from numpy.polynomial import Polynomial
from tvm import tirx
from tvm.ir import Call, Op

from ..ir.passes import prim_func_pass
from .textures import target_kind

#: Up to here the continued fractions are used.
_SMALL = 0.5
#: Their terms, by operator and bits: what is left out is less than half a unit in the last place.
_TERMS = {"tanh": {32: 4, 64: 7}, "atanh": {32: 6, 64: 13}}

_Coefficients = tuple[list[float], list[float]]


def _convergent(numerator: Callable[[int], int], terms: int) -> _Coefficients:
    """Coefficients of p and q, where x · p(x²) / q(x²) is the function."""
    square = Polynomial([0.0, 1.0])
    q, p = Polynomial([2.0 * terms + 1]), Polynomial([1.0])
    for k in range(terms, 0, -1):
        q, p = (2 * k - 1) * q + numerator(k) * square * p, q
    return list(p.coef), list(q.coef)


def _polynomial(coefficients: list[float], x: tirx.PrimExpr) -> tirx.PrimExpr:
    *rest, last = coefficients
    result = tirx.const(last, x.ty.dtype)
    for coefficient in reversed(rest):
        result = result * x + tirx.const(coefficient, x.ty.dtype)
    return result


def _tanh_of_large(x: tirx.PrimExpr) -> tirx.PrimExpr:
    one, two = (tirx.const(v, x.ty.dtype) for v in (1, 2))
    return one - two / (tirx.exp(x * two) + one)


def _atanh_of_large(x: tirx.PrimExpr) -> tirx.PrimExpr:
    one, half = (tirx.const(v, x.ty.dtype) for v in (1, 0.5))
    return tirx.log((one + x) / (one - x)) * half


def _written(
    terms: dict[int, int],
    numerator: Callable[[int], int],
    of_large: Callable[[tirx.PrimExpr], tirx.PrimExpr],
) -> Callable[[Call], tirx.PrimExpr]:
    """How an odd function is written, by its continued fraction and by what is right for x > 0."""
    coefficients = {bits: _convergent(numerator, count) for bits, count in terms.items()}

    def written(call: Call) -> tirx.PrimExpr:
        dtype = call.ty.dtype
        if dtype.bits not in coefficients:
            wide = tvm_ffi.dtype("float32").with_lanes(dtype.lanes)
            single = tirx.Cast(wide, call.args[0])
            return tirx.Cast(dtype, written(tirx.call_intrin(wide, call.op, single)))
        p, q = coefficients[dtype.bits]
        (argument,) = call.args
        # Not a name for a name, which TVM's analysis takes for another value.
        named = isinstance(argument, tirx.Var)
        x, zero = argument if named else tirx.Var("x", dtype), tirx.const(0, dtype)
        square, size = x * x, tirx.Select(x < zero, zero - x, x)
        large = of_large(size)
        large = tirx.Select(x < zero, zero - large, large)
        small = x * _polynomial(p, square) / _polynomial(q, square)
        chosen = tirx.Select(size < tirx.const(_SMALL, dtype), small, large)
        return chosen if named else tirx.Let(x, argument, chosen)

    return written


_WRITTEN = {
    "tirx.tanh": _written(_TERMS["tanh"], lambda _: 1, _tanh_of_large),
    "tirx.atanh": _written(_TERMS["atanh"], lambda k: -k * k, _atanh_of_large),
}


@prim_func_pass("WriteHyperbolics")
def WriteHyperbolics(function: tirx.PrimFunc) -> tirx.PrimFunc:  # noqa: N802
    """Write ``tanh`` and ``atanh`` in code for LLVM, before TVM does."""
    if target_kind(function) != "llvm":
        return function

    def written(call: Call) -> Any:
        write = _WRITTEN.get(call.op.name) if isinstance(call.op, Op) else None
        return call if write is None else write(call)

    return function.with_body(tvm_ffi.structural_map(function.body, (Call, written)))
