"""Passes that are only needed for LLVM, that is for CPUs.

*Hyperbolic functions.*  TVM writes ``tanh`` and ``atanh`` with exponentials and logarithms of
numbers near one, which loses all digits of a small x: tanh(1e-9) is 0.  Here a small x is the
argument of a convergent of the function's continued fraction

    tanh x = x / (1 + x² / (3 + x² / (5 + …)))
    atanh x = x / (1 - x² / (3 - 4x² / (5 - 9x² / (7 - …))))

(J. H. Lambert 1761, C. F. Gauss 1813), which is one division of polynomials in x².

*Exponentials of vectors* in fp32, and sigmoids and error functions, which use them.  LLVM calls
``expf`` for each lane, and keeps every vector in memory meanwhile.  Here they are arithmetic
on whole vectors::

    exp x = 2^n · exp r      n = x / ln 2, rounded      r = x - n · ln 2

with a polynomial for exp r, |r| <= ln 2 / 2, and 2^n in two factors, so that subnormal results
are right.  The error is below 1.1 units in the last place; NaN stays NaN.  Scalars keep ``expf``.

*Nested functions*, such as Mish, x · tanh(log(1 + exp x)).  TVM's code generator substitutes the
value of each name during its analysis: a function uses some dozens of names, a function of one
thousands, and a third level takes minutes.  The argument of a function is therefore stored first,
if it contains another function; LLVM turns it into a register.  An error function contains one, and
is stored part by part.  Values that the program binds to names are stored if they contain a
function.

*Private memory* of kernels is on the stack, where LLVM turns it into registers.  TVM requests
each buffer in the scope ``local`` from its runtime, once for every tile, and LLVM cannot know that
nothing else refers to it: sums that should be registers are stored at every step.  Small buffers
therefore remain stack allocations.

*Small loops* are not distributed over threads, which takes as long as some thousand instructions.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from math import prod

import numpy as np
import tvm_ffi
from numpy.polynomial import Chebyshev, Polynomial
from tvm import IRModule, tirx
from tvm.ir import Call, PrimType

from ..ir.expressions import nodes_in, with_fields
from ..ir.passes import node_pass, prim_func_pass
from ..ir.rewriter import op_name
from .error_function import BEGIN, END, ERF, NEAR_0, TAIL

_FP32 = tvm_ffi.dtype("float32")
#: Magnitude below which the continued fractions are used.
_SMALL = 0.5


def _convergent(numerator: Callable[[int], int], terms: int) -> tuple[Polynomial, Polynomial]:
    """Return the polynomials p and q, with which the function is x · p(x²) / q(x²)."""
    square = Polynomial([0.0, 1.0])
    q, p = Polynomial([2.0 * terms + 1]), Polynomial([1.0])
    for k in range(terms, 0, -1):
        q, p = (2 * k - 1) * q + numerator(k) * square * p, q
    return p, q


def _polynomial(polynomial: Polynomial, x: tirx.Expr) -> tirx.Expr:
    *rest, last = (tirx.const(float(c), x.ty.dtype) for c in polynomial.coef)
    return reduce(lambda result, coefficient: result * x + coefficient, reversed(rest), last)


#: For each odd function: the number of terms of its continued fraction whose remainder is less than
#: half a unit in the last place, by bits; their numerators; and the formula for large x > 0.
_FUNCTIONS: dict[str, tuple[dict[int, int], Callable[[int], int], Callable[..., tirx.Expr]]] = {
    "tirx.tanh": ({32: 4, 64: 7}, lambda _: 1, lambda x: 1 - 2 / (tirx.exp(x * 2) + 1)),
    "tirx.atanh": (
        {32: 6, 64: 13}, lambda k: -k * k, lambda x: tirx.log((1 + x) / (1 - x)) * 0.5,
    ),
}  # fmt: skip


@node_pass(Call, targets=("llvm",))
def WriteHyperbolics(call: Call) -> tirx.Expr:
    """Expand ``tanh`` and ``atanh``, before TVM does."""
    if (name := op_name(call)) not in _FUNCTIONS:
        return call
    terms, numerator, of_large = _FUNCTIONS[name]
    (argument,), dtype = call.args, call.ty.dtype
    if dtype.bits not in terms:
        dtype = tvm_ffi.dtype("float32").with_lanes(dtype.lanes)
        argument = tirx.Cast(dtype, argument)
    p, q = _convergent(numerator, terms[dtype.bits])
    # A second name for a variable would be another value to TVM's analysis.
    named = isinstance(argument, tirx.Var)
    x, zero = argument if named else tirx.Var("x", dtype), tirx.const(0, dtype)
    square, size = x * x, tirx.Select(x < zero, zero - x, x)
    large = of_large(size)
    large = tirx.Select(x < zero, zero - large, large)
    small = x * _polynomial(p, square) / _polynomial(q, square)
    chosen = tirx.Select(size < tirx.const(_SMALL, dtype), small, large)
    result = chosen if named else tirx.Let(x, argument, chosen)
    return result if dtype == call.ty.dtype else tirx.Cast(call.ty.dtype, result)


#: Polynomial for exp r; its relative error is 2e-9.
_POWER = Chebyshev.interpolate(np.exp, 6, domain=[-np.log(2) / 2, np.log(2) / 2]).convert(
    kind=Polynomial
)
#: Below the first, exp is 0 in fp32; above the second, it is infinite.
_LEAST, _MOST = -104.0, 89.0
#: A number whose sum with x has round(x) in its last bits, and this number's bits.
_ROUNDER, _ROUNDER_BITS = 1.5 * 2**23, 0x4B400000
#: The first digits of ln 2, whose products with n are exact, and the remaining ones.
_LN2 = (355 / 512, float(np.log(2)) - 355 / 512)


#: Names with their values.
_Steps = list[tuple[tirx.Var, tirx.Expr]]


def _named(steps: _Steps, result: tirx.Expr) -> tirx.Expr:
    """Bind all names around a result, as TVM's analysis accepts none inside a `Select`."""
    return reduce(lambda inner, step: tirx.Let(*step, inner), reversed(steps), result)


def _exp_of_vector(argument: tirx.Expr) -> tuple[_Steps, tirx.Expr]:
    """Return the steps and the value of the exponential of a vector in fp32."""
    dtype = argument.ty.dtype
    integers = tvm_ffi.dtype("int32").with_lanes(dtype.lanes)

    def real(value: float) -> tirx.Expr:
        return tirx.const(value, dtype)

    def integer(value: int) -> tirx.Expr:
        return tirx.const(value, integers)

    def power_of_2(exponent: tirx.Expr) -> tirx.Expr:
        return tirx.reinterpret(dtype, (exponent + integer(127)) << integer(23))

    given, x, sum_, n = (tirx.Var(name, dtype) for name in ("given", "x", "sum", "n"))
    rest = tirx.Var("rest", dtype)
    whole, half = tirx.Var("whole", integers), tirx.Var("half", integers)
    # Comparisons with NaN are false, so that it passes through.
    clipped = tirx.Select(given < real(_LEAST), real(_LEAST), given)
    clipped = tirx.Select(given > real(_MOST), real(_MOST), clipped)
    steps = [
        (given, argument),
        (x, clipped),
        (sum_, x * real(1 / float(np.log(2))) + real(_ROUNDER)),
        (n, sum_ - real(_ROUNDER)),
        (rest, x - n * real(_LN2[0]) - n * real(_LN2[1])),
        (whole, tirx.reinterpret(integers, sum_) - integer(_ROUNDER_BITS)),
        (half, whole >> integer(1)),
    ]
    return steps, _polynomial(_POWER, rest) * power_of_2(half) * power_of_2(whole - half)


#: A function that binds a value to a name, or stores it.
_Named = Callable[[tirx.Expr], tirx.Expr]


def _erf_of_vector(argument: tirx.Expr, named: _Named, exp: _Named) -> tirx.Expr:
    """Return the error function of a vector in fp32."""
    dtype = argument.ty.dtype
    one, end, zero = (tirx.const(value, dtype) for value in (1.0, END, 0.0))
    x = named(argument)
    size = named(tirx.Select(x < zero, zero - x, x))
    limited = named(tirx.Select(size > end, end, size))
    tail = named(one - exp(_polynomial(TAIL, limited)))
    near_0 = x + x * _polynomial(NEAR_0, x * x)
    signed = tirx.Select(x < zero, zero - tail, tail)
    return tirx.Select(size < tirx.const(BEGIN, dtype), near_0, signed)


@node_pass(Call, targets=("llvm",))
def WriteExponentials(call: Call) -> tirx.Expr:
    """Expand ``exp``, ``sigmoid`` and ``erf`` of fp32 vectors, before TVM does."""
    if (name := op_name(call)) not in ("tirx.exp", "tirx.sigmoid", ERF):
        return call
    (argument,), dtype = call.args, call.ty.dtype
    if not _is_vector(call):
        return tirx.erf(argument) if name == ERF else call
    if name == ERF:
        steps: _Steps = []

        def named(value: tirx.Expr) -> tirx.Var:
            steps.append((tirx.Var(f"part_{len(steps)}", dtype), value))
            return steps[-1][0]

        def exp(value: tirx.Expr) -> tirx.Expr:
            between, power = _exp_of_vector(value)
            steps.extend(between)
            return power

        return _named(steps, _erf_of_vector(argument, named, exp))
    if name == "tirx.exp":
        return _named(*_exp_of_vector(argument))
    one, zero = tirx.const(1, dtype), tirx.const(0, dtype)
    steps, power = _exp_of_vector(zero - argument)
    return _named(steps, one / (one + power))


#: Functions whose expansion binds names.
_NAMED = ("tirx.exp", "tirx.sigmoid", ERF, *_FUNCTIONS)


def _is_vector(call: Call) -> bool:
    dtype = call.ty.dtype
    return dtype.lanes > 1 and dtype == _FP32.with_lanes(dtype.lanes)


def _is_named(node: object) -> bool:
    return isinstance(node, Call) and op_name(node) in _NAMED


@node_pass(tirx.BufferStore, tirx.Bind, targets=("llvm",))
def StoreArguments(statement: tirx.BufferStore | tirx.Bind) -> tirx.Stmt:
    """Store the argument of a function before it if it contains a function, and bound functions."""
    before: list[tirx.Stmt] = []

    def put(value: tirx.Expr) -> tirx.BufferLoad:
        dtype = value.ty.dtype
        buffer = tirx.decl_buffer(
            (dtype.lanes,), str(dtype.with_lanes(1)), f"argument_{len(before) // 2}", scope="local"
        )
        place = tirx.const(0, "int32")
        if dtype.lanes > 1:
            place = tirx.Ramp(place, 1, dtype.lanes)
        before.extend([tirx.AllocBuffer(buffer), tirx.BufferStore(buffer, value, [place])])
        return tirx.BufferLoad(buffer, [place])

    def stored(call: Call) -> tirx.Expr:
        """Store a call's argument; inner calls come first."""
        (argument,) = call.args
        if op_name(call) == ERF and _is_vector(call):
            return _erf_of_vector(argument, put, lambda value: tirx.exp(put(value)))
        if not any(_is_named(inner) for inner in nodes_in(argument, Call)):
            return call
        return Call(call.op, [put(argument)], call.attrs, ret_ty=call.ty)

    value = statement.value
    calls = [call for call in nodes_in(value, Call) if _is_named(call)]
    several = len(calls) > 1 or any(op_name(call) == ERF and _is_vector(call) for call in calls)
    if several and not any(_is_lazy(node) for node in nodes_in(value, Call, tirx.Let)):
        value = tvm_ffi.structural_map(
            value, (Call, lambda call: stored(call) if _is_named(call) else call)
        )
    if isinstance(statement, tirx.BufferStore):
        changed: tirx.Stmt = tirx.BufferStore(statement.buffer, value, statement.indices)
    else:
        changed = tirx.Bind(statement.var, put(value) if calls else value)
    return tirx.SeqStmt([*before, changed]) if before else statement


def _is_lazy(node: Call | tirx.Let) -> bool:
    """Return whether a node may not be computed unconditionally, or binds names."""
    if isinstance(node, tirx.Let):
        return True
    return op_name(node) == "tirx.if_then_else" and any(
        _is_named(inner) for choice in node.args[1:] for inner in nodes_in(choice, Call)
    )


#: Largest buffer on the stack; threads have some megabytes.
LARGEST_BYTES = 64 << 10
#: TVM's annotation that prevents the call of its runtime.
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
    """Run TVM's elimination of common subexpressions; OpenCL C gets it in `NameIndexTerms`."""
    return tirx.transform.CommonSubexprElim()(IRModule({"main": function}))["main"]


#: Distributing a loop and waiting for its parts takes 2 µs, half the time of so many instructions.
_SMALL_LOOP = 16_000
#: Instructions of a vector of a function such as ``exp``; bytes of a vector.
_FUNCTION, _VECTOR_BYTES = 20, 32
#: Nodes that need no instruction.
_FREE = (tirx.Var, tirx.IntImm, tirx.FloatImm, tirx.Ramp, tirx.Broadcast, tirx.Let)


def _instructions(node: tirx.Expr | tirx.BufferStore) -> int:
    """Return the most instructions that a node takes by itself."""
    kind = (node.value if isinstance(node, tirx.BufferStore) else node).ty
    if isinstance(node, _FREE) or not isinstance(kind, PrimType):
        return 0
    dtype = kind.dtype
    vectors = -(-dtype.itemsize // _VECTOR_BYTES)
    return vectors * (_FUNCTION if isinstance(node, Call) else 1)


@node_pass(tirx.For, targets=("llvm",))
def SerializeSmallLoops(loop: tirx.For) -> tirx.For:
    """Run small parallel loops in the calling thread; runs after loops are unrolled."""
    if loop.kind != tirx.ForKind.PARALLEL or nodes_in(loop, tirx.While):
        return loop
    extents = [each.extent for each in nodes_in(loop, tirx.For)]
    if not all(isinstance(extent, tirx.IntImm) for extent in extents):
        return loop
    # An upper bound: as if each of these loops were nested in the one before.
    times = prod(map(int, extents))
    if times >= _SMALL_LOOP:
        return loop
    parts = nodes_in(loop.body, tirx.Expr, tirx.BufferStore)
    if times * sum(map(_instructions, parts)) >= _SMALL_LOOP:
        return loop
    return with_fields(loop, kind=tirx.ForKind.SERIAL)
