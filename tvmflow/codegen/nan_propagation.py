"""Maxima and minima of floats that NaN goes through, as in ONNX, on every target.

What TVM generates for ``T.max`` loses NaN: ``a > b ? a : b`` is ``b`` where ``a`` is NaN, OpenCL C
leaves ``max`` of NaN open, and CUDA's returns the number.  An overflow inside a network would be
a number at its output.  The last pass writes what all of them must do::

    T.max(x, 0.0)        0.0 > x ? 0.0 : x                         one instruction, as before
    T.max(a, b)          a != a ? a : a > b ? a : b

The first form is for operands of which one is no NaN: a limit, or the sum of an integer.  CPUs'
``maxps`` is that choice, the operand behind the comparison being what it returns for NaN.

Integers are not touched.  Up to here there are plain maxima, as schedules, simplification and
:mod:`.rounding` know them.

A number on its way to an integer has no NaN to go to: :func:`at_least` is its lower limit, as in
ONNX Runtime's QuantizeLinear, and indices stay where their limits keep them.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import tvm_ffi
from tvm import te, tirx
from tvm.ir import Call, Op

from ..ir.expressions import register_intrinsic
from ..ir.passes import map_nodes, prim_func_pass, target_kind

#: Prefix of the functions in kernels' source.
PREFIX = "tvmflow_nan_"

_AT_LEAST_NAME = "tirx.tvmflow_at_least"
register_intrinsic(_AT_LEAST_NAME, "A float, or its lower limit where that is not less.")
_AT_LEAST = Op.get(_AT_LEAST_NAME)

_FLOAT = tvm_ffi.dtype("float32").type_code
_INTEGERS = (tvm_ffi.dtype("int32").type_code, tvm_ffi.dtype("uint32").type_code)


def at_least(value: tirx.Expr, limit: tirx.Expr) -> tirx.Expr:
    """``max(value, limit)`` that is the limit where the value is NaN."""
    return tirx.call_intrin(value.ty, _AT_LEAST_NAME, value, limit)


def reducer(largest: bool, dtype: str) -> Callable[..., tirx.Expr]:
    """Maximum or minimum over axes; of floats from an infinity on."""
    extreme = te.max if largest else te.min
    if not dtype.startswith(("float", "bfloat")):
        return extreme
    start = float("-inf") if largest else float("inf")
    return te.comm_reducer(
        lambda a, b: extreme(a, b),  # noqa: PLW0108 (its parameters are counted)
        lambda kind: tirx.const(start, kind),
    )


@prim_func_pass("PropagateNaN")
def PropagateNaN(function: tirx.PrimFunc) -> tirx.PrimFunc:  # noqa: N802
    """Write maxima and minima of floats, and tests for inequality, as choices that NaN obeys.

    Runs on kernels, behind everything that simplifies or shares results between threads.
    """
    kind = target_kind(function)
    if kind is None:
        return function
    written, limited = {
        "opencl": (_by_function, _limited_by_function),
        "cuda": (_by_overload, tirx.Max),
    }.get(kind, (_by_choice, tirx.Max))

    def extreme(node: tirx.Max | tirx.Min) -> tirx.Expr:
        return written(node) if _is_float(node) else node

    def call(call: Call) -> tirx.Expr:
        # The operand behind the comparison is the result for NaN: the limit.
        return limited(*call.args) if call.op.same_as(_AT_LEAST) else call

    callbacks = [(tirx.Max, extreme), (tirx.Min, extreme), (Call, call)]
    if written is _by_choice:
        callbacks.append((tirx.NE, _differs))
    return map_nodes(function, *callbacks)


def _is_float(expr: tirx.Expr) -> bool:
    return tvm_ffi.dtype(expr.ty.dtype).type_code == _FLOAT


def never_nan(expr: tirx.Expr) -> bool:
    """True for a value that is known to be a number."""
    if isinstance(expr, tirx.FloatImm):
        return expr.value == expr.value
    if isinstance(expr, tirx.Broadcast):
        return never_nan(expr.value)
    if isinstance(expr, tirx.Cast):
        return tvm_ffi.dtype(expr.value.ty.dtype).type_code in _INTEGERS or never_nan(expr.value)
    if isinstance(expr, (tirx.Max, tirx.Min)):
        return never_nan(expr.a) and never_nan(expr.b)
    return False


def _ordered(node: tirx.Max | tirx.Min) -> tuple[tirx.Expr, tirx.Expr, bool]:
    """The operands, the one that is no NaN first, and true if there is one."""
    if never_nan(node.a):
        return node.a, node.b, True
    return (node.b, node.a, True) if never_nan(node.b) else (node.a, node.b, False)


# -- LLVM ---------------------------------------------------------------------------------


def _by_choice(node: tirx.Max | tirx.Min) -> tirx.Expr:
    """Maxima as LLVM gets them from TVM: ``a > b ? a : b``, each operand computed once.

    Names (``Let``) only where there is no other way: TVM's code generator puts what they stand
    for in place of them to analyse it, which takes twice the time for each that is within another.
    """
    first, second, is_limit = _ordered(node)
    extreme = type(node)
    if is_limit:
        return extreme(first, second)
    if isinstance(first, tirx.Var):
        # Not a name for a name, which TVM's analysis takes for another value.
        return tirx.Select(tirx.EQ(first, first), extreme(first, second), first)
    name = tirx.Var("first", first.ty.dtype)
    # TVM's inequality is false for NaN: this asks for equality.
    return tirx.Let(name, first, tirx.Select(tirx.EQ(name, name), extreme(name, second), name))


def _differs(node: tirx.NE) -> tirx.Expr:
    """``a != b``, true where one is NaN; LLVM is asked for numbers that differ otherwise."""
    return tirx.Not(tirx.EQ(node.a, node.b)) if _is_float(node.a) else node


# -- OpenCL C and CUDA C++ ----------------------------------------------------------------

_OPENCL_TYPES = {16: "half", 32: "float", 64: "double"}
_NAME = re.compile(rf"\b{PREFIX}(max|min)(_limit)?_(half|float|double)(\d*)\b")


def _function(node: tirx.Max | tirx.Min) -> str:
    return f"{PREFIX}{'max' if isinstance(node, tirx.Max) else 'min'}"


def _by_function(node: tirx.Max | tirx.Min) -> tirx.Expr:
    first, second, is_limit = _ordered(node)
    name = f"{_function(node)}{'_limit' if is_limit else ''}_{_opencl_type(node)}"
    return tirx.call_pure_extern(node.ty, name, first, second)


def _limited_by_function(value: tirx.Expr, limit: tirx.Expr) -> tirx.Expr:
    return tirx.call_pure_extern(value.ty, f"{PREFIX}max_limit_{_opencl_type(value)}", value, limit)


def _opencl_type(value: tirx.Expr) -> str:
    dtype = tvm_ffi.dtype(value.ty.dtype)
    return _OPENCL_TYPES[dtype.bits] + (str(dtype.lanes) if dtype.lanes > 1 else "")


def _by_overload(node: tirx.Max | tirx.Min) -> tirx.Expr:
    # TVM's CUDA code calls functions lane by lane.
    return tirx.call_pure_extern(node.ty, _function(node), node.a, node.b)


def with_opencl_functions(source: str) -> str:
    """OpenCL C of kernels behind the functions that they call."""
    found = sorted({match.group(): match for match in _NAME.finditer(source)}.items())
    return "".join(_definition(match) for _, match in found) + source


def _definition(match: re.Match[str]) -> str:
    name, kind, comparison = match.group(), f"{match[3]}{match[4]}", "><"[match[1] == "min"]
    value = f"a {comparison} b ? a : b" if match[2] else f"a != a ? a : a {comparison} b ? a : b"
    # Kernels are built together, and each has the functions. A choice takes vectors as it does
    # numbers (section 6.3.9), each lane by its own test.
    extension = f"#pragma OPENCL EXTENSION cl_khr_fp{_BITS[match[3]]} : enable\n"
    return (
        f"#ifndef {name.upper()}\n#define {name.upper()}\n"
        f"{'' if match[3] == 'float' else extension}"
        f"inline {kind} {name}({kind} a, {kind} b) {{ return {value}; }}\n"
        "#endif\n"
    )


_BITS = {name: bits for bits, name in _OPENCL_TYPES.items()}


_KERNEL = re.compile(r'^extern "C" __global__', re.MULTILINE)


def with_cuda_functions(source: str) -> str:
    """CUDA C++ of kernels behind the functions that they call."""
    kernel = _KERNEL.search(source)
    if PREFIX not in source or kernel is None:
        return source
    # Behind what declares half, where a kernel has it.
    functions = _CUDA + (_CUDA_HALF if "cuda_fp16.h" in source else "")
    return source[: kernel.start()] + functions + source[kernel.start() :]


# From compute capability 8.0 there is an instruction.
_CUDA = """\
#if defined(__CUDACC__) && __CUDA_ARCH__ >= 800
#define TVMFLOW_NAN_FLOAT(name, op)                                   \\
  static __device__ __forceinline__ float name(float a, float b) {    \\
    float c;                                                          \\
    asm(#op ".NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));       \\
    return c;                                                         \\
  }
TVMFLOW_NAN_FLOAT(tvmflow_nan_max, max)
TVMFLOW_NAN_FLOAT(tvmflow_nan_min, min)
#undef TVMFLOW_NAN_FLOAT
#else
static __device__ __forceinline__ float tvmflow_nan_max(float a, float b) {
  return a != a || a > b ? a : b;
}
static __device__ __forceinline__ float tvmflow_nan_min(float a, float b) {
  return a != a || a < b ? a : b;
}
#endif
static __device__ __forceinline__ double tvmflow_nan_max(double a, double b) {
  return a != a || a > b ? a : b;
}
static __device__ __forceinline__ double tvmflow_nan_min(double a, double b) {
  return a != a || a < b ? a : b;
}
"""
_CUDA_HALF = """\
static __device__ __forceinline__ half tvmflow_nan_max(half a, half b) {
  return __hisnan(a) || __hgt(a, b) ? a : b;
}
static __device__ __forceinline__ half tvmflow_nan_min(half a, half b) {
  return __hisnan(a) || __hlt(a, b) ? a : b;
}
"""
