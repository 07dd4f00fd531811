"""Passes that only code for LLVM, that is for CPUs, needs.

*Hyperbolic functions.*  TVM writes ``tanh`` and ``atanh`` by exponentials and logarithms of numbers
near one, in which a small x leaves no digits: tanh(1e-9) is 0.  Here a small x goes into a
convergent of the function's continued fraction

    tanh x = x / (1 + x² / (3 + x² / (5 + …)))
    atanh x = x / (1 - x² / (3 - 4x² / (5 - 9x² / (7 - …))))

(J. H. Lambert 1761, C. F. Gauss 1813), which is one division of polynomials in x².

*Private memory* of kernels is on the stack, where LLVM makes registers of it.  TVM asks its runtime
for each buffer in the scope ``local``, once for every tile, and what comes back may be anybody's
memory: sums that should be registers are stored at every step.  Small buffers stay what they are,
which is the stack.
"""

from __future__ import annotations

from collections.abc import Callable

import tvm_ffi
from numpy.polynomial import Polynomial
from tvm import tirx
from tvm.ir import Call, Op

from ..ir.passes import node_pass

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


def _polynomial(coefficients: list[float], x: tirx.Expr) -> tirx.Expr:
    *rest, last = coefficients
    result = tirx.const(last, x.ty.dtype)
    for coefficient in reversed(rest):
        result = result * x + tirx.const(coefficient, x.ty.dtype)
    return result


def _tanh_of_large(x: tirx.Expr) -> tirx.Expr:
    one, two = (tirx.const(v, x.ty.dtype) for v in (1, 2))
    return one - two / (tirx.exp(x * two) + one)


def _atanh_of_large(x: tirx.Expr) -> tirx.Expr:
    one, half = (tirx.const(v, x.ty.dtype) for v in (1, 0.5))
    return tirx.log((one + x) / (one - x)) * half


def _written(
    terms: dict[int, int],
    numerator: Callable[[int], int],
    of_large: Callable[[tirx.Expr], tirx.Expr],
) -> Callable[[Call], tirx.Expr]:
    """Writes an odd function, by its continued fraction and by what is right for x > 0."""
    coefficients = {bits: _convergent(numerator, count) for bits, count in terms.items()}

    def written(call: Call) -> tirx.Expr:
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


def _replaced(call: Call) -> tirx.Expr:
    write = _WRITTEN.get(call.op.name) if isinstance(call.op, Op) else None
    return call if write is None else write(call)


#: Write ``tanh`` and ``atanh``, before TVM does.
WriteHyperbolics = node_pass("WriteHyperbolics", (Call, _replaced), targets=("llvm",))


#: The largest buffer that is kept on the stack; threads have some megabytes.
LARGEST_BYTES = 64 << 10
#: TVM's annotation for not asking its runtime.
_ON_STACK = "disable_lower_builtin"


def _on_stack(statement: tirx.AllocBuffer) -> tirx.Stmt:
    buffer = statement.buffer
    if not buffer.scope().startswith("local"):
        return statement
    size = tvm_ffi.dtype(str(buffer.dtype)).itemsize
    for extent in buffer.shape:
        if not isinstance(extent, tirx.IntImm):
            return statement
        size *= int(extent)
    if size > LARGEST_BYTES:
        return statement
    return tirx.AllocBuffer(buffer, {**statement.annotations, _ON_STACK: tirx.IntImm("int32", 1)})


#: Keep private buffers of up to 64 KiB on the stack; runs before TVM's lowering of calls.
KeepOnStack = node_pass("KeepOnStack", (tirx.AllocBuffer, _on_stack))
