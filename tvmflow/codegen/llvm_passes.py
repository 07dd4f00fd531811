"""Passes that only code for LLVM, that is for CPUs, needs.

*Hyperbolic functions.*  TVM writes ``tanh`` and ``atanh`` by exponentials and logarithms of numbers
near one, in which a small x leaves no digits: tanh(1e-9) is 0.  Here a small x goes into a
convergent of the function's continued fraction

    tanh x = x / (1 + x² / (3 + x² / (5 + …)))
    atanh x = x / (1 - x² / (3 - 4x² / (5 - 9x² / (7 - …))))

(J. H. Lambert 1761, C. F. Gauss 1813), which is one division of polynomials in x².

*Exponentials of vectors.*  LLVM calls the C library for each lane.  Here, of fp32,

    exp x = 2ⁿ · exp r,    n = round(x / log 2),    r = x - n · log 2,    |r| ≤ log 2 / 2

with Taylor's polynomial of exp r: its remainder is below a tenth of a unit in the last place.

*Private memory* of kernels is on the stack, where LLVM makes registers of it.  TVM asks its runtime
for each buffer in the scope ``local``, once for every tile, and what comes back may be anybody's
memory: sums that should be registers are stored at every step.  Small buffers stay what they are,
which is the stack.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from math import factorial, ldexp, log, prod

import tvm_ffi
from numpy.polynomial import Polynomial
from tvm import IRModule, tirx
from tvm.ir import Call

from ..ir.passes import node_pass, prim_func_pass
from ..ir.rewriter import op_name

#: Up to here the continued fractions are used.
_SMALL = 0.5


def _convergent(numerator: Callable[[int], int], terms: int) -> tuple[Polynomial, Polynomial]:
    """The polynomials p and q, where x · p(x²) / q(x²) is the function."""
    square = Polynomial([0.0, 1.0])
    q, p = Polynomial([2.0 * terms + 1]), Polynomial([1.0])
    for k in range(terms, 0, -1):
        q, p = (2 * k - 1) * q + numerator(k) * square * p, q
    return p, q


def _polynomial(polynomial: Polynomial, x: tirx.Expr) -> tirx.Expr:
    *rest, last = (tirx.const(float(c), x.ty.dtype) for c in polynomial.coef)
    return reduce(lambda result, coefficient: result * x + coefficient, reversed(rest), last)


#: Of each odd function: how many terms of its continued fraction leave out less than half a unit in
#: the last place, by bits; their numerators; and what is right for large x > 0.
_FUNCTIONS: dict[str, tuple[dict[int, int], Callable[[int], int], Callable[..., tirx.Expr]]] = {
    "tirx.tanh": ({32: 4, 64: 7}, lambda _: 1, lambda x: 1 - 2 / (tirx.exp(x * 2) + 1)),
    "tirx.atanh": (
        {32: 6, 64: 13}, lambda k: -k * k, lambda x: tirx.log((1 + x) / (1 - x)) * 0.5,
    ),
}  # fmt: skip


@node_pass(Call, targets=("llvm",))
def WriteHyperbolics(call: Call) -> tirx.Expr:
    """Write ``tanh`` and ``atanh``, before TVM does."""
    if (name := op_name(call)) not in _FUNCTIONS:
        return call
    terms, numerator, of_large = _FUNCTIONS[name]
    (argument,), dtype = call.args, call.ty.dtype
    if dtype.bits not in terms:
        dtype = tvm_ffi.dtype("float32").with_lanes(dtype.lanes)
        argument = tirx.Cast(dtype, argument)
    p, q = _convergent(numerator, terms[dtype.bits])
    # Not a name for a name, which TVM's analysis takes for another value.
    named = isinstance(argument, tirx.Var)
    x, zero = argument if named else tirx.Var("x", dtype), tirx.const(0, dtype)
    square, size = x * x, tirx.Select(x < zero, zero - x, x)
    large = of_large(size)
    large = tirx.Select(x < zero, zero - large, large)
    small = x * _polynomial(p, square) / _polynomial(q, square)
    chosen = tirx.Select(size < tirx.const(_SMALL, dtype), small, large)
    result = chosen if named else tirx.Let(x, argument, chosen)
    return result if dtype == call.ty.dtype else tirx.Cast(call.ty.dtype, result)


# -- exponentials of vectors --------------------------------------------------------------

#: Terms of the polynomial.
_TERMS = 8
#: log 2 in two parts; of the first, products with n of up to 8 bits are exact.
_LOG_2 = ldexp(round(ldexp(log(2), 12)), -12)
_LOG_2_REST = log(2) - _LOG_2
#: Beyond these fp32 has zero and infinity.
_LOWEST, _HIGHEST = -104.0, 89.0
#: Bits of an fp32's fraction, and what is added to its exponent.
_FRACTION_BITS, _BIAS = 23, 127


@node_pass(Call, targets=("llvm",))
def WriteExponentials(call: Call) -> tirx.Expr:
    """Write ``exp`` and ``sigmoid`` of vectors of fp32; runs behind :func:`WriteHyperbolics`."""
    if (name := op_name(call)) not in ("tirx.exp", "tirx.sigmoid"):
        return call
    (x,), dtype = call.args, call.ty.dtype
    if dtype.lanes == 1 or dtype.with_lanes(1) != tvm_ffi.dtype("float32"):
        return call
    if name == "tirx.exp":
        return _exponential(x)
    one = tirx.const(1, dtype)
    return one / (one + _exponential(tirx.const(0, dtype) - x))


def _exponential(argument: tirx.Expr) -> tirx.Expr:
    """exp of a vector, with subnormal results; NaN of NaN."""
    dtype = argument.ty.dtype
    whole = tvm_ffi.dtype("int32").with_lanes(dtype.lanes)
    x, near, n, r = (
        tirx.Var(name, kind)
        for name, kind in (("x", dtype), ("near", dtype), ("n", whole), ("r", dtype))
    )

    def number(value: float) -> tirx.Expr:
        return tirx.const(value, dtype)

    lowest, highest = number(_LOWEST), number(_HIGHEST)
    limited = tirx.Select(x > highest, highest, tirx.Select(x < lowest, lowest, x))
    # NaN has no integer.
    scaled = tirx.Select(near > lowest, near, lowest) * number(1 / log(2))
    rounded = scaled + tirx.Select(scaled < number(0), number(-0.5), number(0.5))
    times = tirx.Cast(dtype, n)
    rest = near - times * number(_LOG_2) - times * number(_LOG_2_REST)
    taylor = Polynomial([1 / factorial(k) for k in range(_TERMS)])

    def power(exponent: tirx.Expr) -> tirx.Expr:
        biased = exponent + tirx.const(_BIAS, whole)
        bits = tirx.shift_left(biased, tirx.const(_FRACTION_BITS, whole))
        return tirx.reinterpret(dtype, bits)

    # In two factors, as 2ⁿ itself may be too large or too small for fp32.
    half = tirx.shift_right(n, tirx.const(1, whole))
    result = _polynomial(taylor, r) * power(half) * power(n - half)
    for var, value in ((r, rest), (n, tirx.Cast(whole, rounded)), (near, limited), (x, argument)):
        result = tirx.Let(var, value, result)
    return result


# -- private memory -----------------------------------------------------------------------

#: The largest buffer that is kept on the stack; threads have some megabytes.
LARGEST_BYTES = 64 << 10
#: TVM's annotation for not asking its runtime.
_ON_STACK = "disable_lower_builtin"


@node_pass(tirx.AllocBuffer)
def KeepOnStack(statement: tirx.AllocBuffer) -> tirx.Stmt:
    """Keep private buffers of up to 64 KiB on the stack; runs before TVM's lowering of calls."""
    buffer = statement.buffer
    static = all(isinstance(extent, tirx.IntImm) for extent in buffer.shape)
    if not (static and buffer.scope().startswith("local")):
        return statement
    if prod(map(int, buffer.shape)) * buffer.dtype.itemsize > LARGEST_BYTES:
        return statement
    return tirx.AllocBuffer(buffer, {**statement.annotations, _ON_STACK: tirx.IntImm("int32", 1)})


@prim_func_pass("llvm", "cuda")
def NameSubexpressions(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """TVM's pass; kernels in OpenCL C get it when nothing is left that writes names out again."""
    return tirx.transform.CommonSubexprElim()(IRModule({"main": function}))["main"]
