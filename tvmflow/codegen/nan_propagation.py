"""Maxima and minima of floats that propagate NaN, as in ONNX, on every target.

TVM's code for ``T.max`` loses NaN: ``a > b ? a : b`` is ``b`` if ``a`` is NaN, OpenCL C
leaves ``max`` of NaN undefined, and CUDA's returns the number.  An overflow inside a network would
become a number at its output.  The last pass writes the same semantics for all targets::

    T.max(x, 0.0)        0.0 > x ? 0.0 : x                         one instruction, as before
    T.max(a, b)          a != a ? a : a > b ? a : b

The first form is for operands of which one is never NaN: a limit, or the sum of an integer.  It is
one instruction on CPUs: ``maxps`` returns its second operand if either one is NaN.  Integers are
unchanged.  Before this pass there are plain maxima, which schedules, simplification and
:mod:`.rounding` recognise.

A number that is converted to an integer cannot stay NaN: :func:`.at_least` gives its lower limit,
as in ONNX Runtime's QuantizeLinear, and indices stay within their limits.
"""

from __future__ import annotations

import re
from functools import partial

import tvm_ffi
from tvm import tirx
from tvm.ir import Call

from ..ir.extremes import AT_LEAST, never_nan
from ..ir.passes import map_nodes, prim_func_pass, target_kind
from ..ir.rewriter import op_name

#: Prefix of the functions in kernels' source.
PREFIX = "tvmflow_nan_"

_FLOAT = tvm_ffi.dtype("float32").type_code


@prim_func_pass()
def PropagateNaN(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Write maxima and minima of floats, and tests for inequality, as selects that propagate NaN.

    Runs on kernels, after all passes that simplify or share results between threads.
    """
    kind = target_kind(function)
    if kind is None:
        return function
    written, limited = {
        "opencl": (_by_function, partial(_opencl_call, "max_limit")),
        "cuda": (_by_overload, tirx.Max),
    }.get(kind, (_by_choice, tirx.Max))

    def extreme(node: tirx.Max | tirx.Min) -> tirx.Expr:
        return written(node) if _is_float(node) else node

    def call(call: Call) -> tirx.Expr:
        # The second operand of the comparison is the result for NaN: the limit.
        return limited(*call.args) if op_name(call) == AT_LEAST else call

    differs = [(tirx.NE, _differs)] if written is _by_choice else []
    return map_nodes(function, ((tirx.Max, tirx.Min), extreme), (Call, call), *differs)


def _is_float(expr: tirx.Expr) -> bool:
    return expr.ty.dtype.type_code == _FLOAT


def _ordered(node: tirx.Max | tirx.Min) -> tuple[tirx.Expr, tirx.Expr, bool]:
    """Return the operands, one that is never NaN first if there is one, and whether there is."""
    swapped = never_nan(node.b) and not never_nan(node.a)
    first, second = (node.b, node.a) if swapped else (node.a, node.b)
    return first, second, never_nan(first)


def _by_choice(node: tirx.Max | tirx.Min) -> tirx.Expr:
    """Return a maximum or minimum as ``a > b ? a : b`` for LLVM, with each operand computed once.

    Names (``Let``) are only used if there is no other way: TVM's code generator substitutes their
    values for its analysis, which doubles the time for each level of nesting.
    """
    first, second, is_limit = _ordered(node)
    extreme = type(node)
    if is_limit:
        return extreme(first, second)
    if isinstance(first, tirx.Var):
        # A second name for a variable would be another value to TVM's analysis.
        return tirx.Select(tirx.EQ(first, first), extreme(first, second), first)
    name = tirx.Var("first", first.ty.dtype)
    # TVM's inequality is false for NaN, so test for equality.
    return tirx.Let(name, first, tirx.Select(tirx.EQ(name, name), extreme(name, second), name))


def _differs(node: tirx.NE) -> tirx.Expr:
    """Return ``a != b``, true if one is NaN, as a negated equality: LLVM would ignore NaN."""
    return tirx.Not(tirx.EQ(node.a, node.b)) if _is_float(node.a) else node


# -- OpenCL C and CUDA C++ ----------------------------------------------------------------

_OPENCL_TYPES = {16: "half", 32: "float", 64: "double"}
#: The functions' names in OpenCL C.
NAME = re.compile(rf"\b{PREFIX}(max|min)(_limit)?_(half|float|double)(\d*)\b")


def _name(node: tirx.Max | tirx.Min) -> str:
    return "max" if isinstance(node, tirx.Max) else "min"


def _by_function(node: tirx.Max | tirx.Min) -> tirx.Expr:
    *operands, is_limit = _ordered(node)
    return _opencl_call(_name(node) + ("_limit" if is_limit else ""), *operands)


def _opencl_call(name: str, *operands: tirx.Expr) -> tirx.Expr:
    ty = operands[0].ty
    kind = _OPENCL_TYPES[ty.dtype.bits] + (str(ty.dtype.lanes) if ty.dtype.lanes > 1 else "")
    return tirx.call_pure_extern(ty, f"{PREFIX}{name}_{kind}", *operands)


def _by_overload(node: tirx.Max | tirx.Min) -> tirx.Expr:
    # TVM's CUDA code calls functions lane by lane.
    return tirx.call_pure_extern(node.ty, PREFIX + _name(node), node.a, node.b)


def definition(match: re.Match[str]) -> str:
    """Return OpenCL C of a function that kernels call by a `NAME`."""
    comparison = "><"[match[1] == "min"]
    # Clang turns `?:` between vectors (section 6.3.9) into arithmetic on their bits,
    # which GPUs' compilers do not turn back.
    choose = "select({2}, {1}, {0})" if match[4] else "{0} ? {1} : {2}"
    value = choose.format(f"a {comparison} b", "a", "b")
    if not match[2]:
        value = choose.format("a != a", "a", value)
    kind = f"{match[3]}{match[4]}"
    function = f"static inline {kind} {match.group()}({kind} a, {kind} b) {{ return {value}; }}\n"
    bits = {"half": 16, "double": 64}.get(match[3])
    return f"#pragma OPENCL EXTENSION cl_khr_fp{bits} : enable\n{function}" if bits else function


_KERNEL = re.compile(r'^extern "C" __global__', re.MULTILINE)


def with_cuda_functions(source: str) -> str:
    """Add the functions that CUDA C++ kernels call before them."""
    kernel = _KERNEL.search(source)
    if PREFIX not in source or kernel is None:
        return source
    # After the declaration of half, if a kernel has it.
    functions = _CUDA + (_CUDA_HALF if "cuda_fp16.h" in source else "")
    return source[: kernel.start()] + functions + source[kernel.start() :]


def _cuda_functions(kind: str, greater: str, less: str) -> str:
    return "".join(
        f"static __device__ __forceinline__ {kind} {PREFIX}{name}({kind} a, {kind} b) {{\n"
        f"  return {test} ? a : b;\n"
        "}\n"
        for name, test in (("max", greater), ("min", less))
    )


_PLAIN = ("a != a || a > b", "a != a || a < b")
# There is an instruction since compute capability 8.0.
_CUDA = f"""\
#if defined(__CUDACC__) && __CUDA_ARCH__ >= 800
#define TVMFLOW_NAN_FLOAT(name, op)                                   \\
  static __device__ __forceinline__ float name(float a, float b) {{    \\
    float c;                                                          \\
    asm(#op ".NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));       \\
    return c;                                                         \\
  }}
TVMFLOW_NAN_FLOAT(tvmflow_nan_max, max)
TVMFLOW_NAN_FLOAT(tvmflow_nan_min, min)
#undef TVMFLOW_NAN_FLOAT
#else
{_cuda_functions("float", *_PLAIN)}\
#endif
{_cuda_functions("double", *_PLAIN)}\
"""
_CUDA_HALF = _cuda_functions("half", "__hisnan(a) || __hgt(a, b)", "__hisnan(a) || __hlt(a, b)")
