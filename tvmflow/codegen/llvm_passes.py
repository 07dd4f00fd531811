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
from functools import reduce
from math import prod

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
