"""The operator of TIR for dot products of four 8-bit numbers, and its lowering for each target.

It becomes an instruction of AVX-512 VNNI or Arm's dot products for LLVM, plain arithmetic for any
other CPU, and functions for OpenCL C and CUDA C++, which :mod:`tvmflow.codegen.dot_products` has.
"""

from __future__ import annotations

from functools import partial

import tvm
from tvm import tirx
from tvm.ir import Call
from tvm.target import codegen
from tvm.tirx.op import register_intrin_lowering

from .expressions import lower_to_function, register_intrinsic

DOT = "tirx.tvmflow_dot4"
#: Prefix of the functions in kernels' source; the number of lanes follows.
FUNCTION = "tvmflow_dot4_"


def dot(total: tirx.Expr, x: tirx.Expr, w: tirx.Expr) -> tirx.Expr:
    """Return ``total`` plus the products of the four bytes of ``x`` and ``w``."""
    return tirx.call_intrin("int32", DOT, total, x, w)


def _for_llvm(call: Call) -> tirx.Expr:
    total, x, w = call.args
    target = tvm.target.Target.current(allow_none=True)
    lanes = call.ty.dtype.lanes

    def has(feature: str) -> bool:
        return target is not None and bool(codegen.target_has_features(feature, target))

    if lanes == 16 and has("avx512vnni"):
        bytes_ = [tirx.reinterpret("int8x64", factor) for factor in (x, w)]
        return tirx.call_llvm_pure_intrin(call.ty, "llvm.x86.avx512.vpdpbusd.512", total, *bytes_)
    if lanes % 4 == 0 and has("dotprod"):
        return _by_fours(total, x, w)
    constant = partial(tirx.const, dtype=call.ty.dtype)
    arm = has("neon")
    for byte in range(4):
        signed = (w << constant(24 - 8 * byte)) >> constant(24)
        left = (
            (x << constant(24 - 8 * byte)) >> constant(24)
            if arm
            else (x >> constant(8 * byte)) & constant(255)
        )
        total = total + left * signed
    return total


def _by_fours(*operands: tirx.Expr) -> tirx.Expr:
    """Return Arm's instruction for every four lanes."""
    lanes = operands[0].ty.dtype.lanes
    if lanes == 4:
        total, *factors = operands
        bytes_ = [tirx.reinterpret("int8x16", factor) for factor in factors]
        name = "llvm.aarch64.neon.sdot.v4i32.v16i8"
        return tirx.call_llvm_pure_intrin("int32x4", name, total, *bytes_)
    # Bound to names, as each operand is read twice.
    named = [tirx.Var("operand", operand.ty) for operand in operands]
    half = f"int32x{lanes // 2}"
    low = _by_fours(*(tirx.vectorlow(half, v) for v in named))
    high = _by_fours(*(tirx.vectorhigh(half, v) for v in named))
    result: tirx.Expr = tirx.vectorcombine(operands[0].ty.dtype, low, high)
    for var, operand in zip(named, operands, strict=True):
        result = tirx.Let(var, operand, result)
    return result


register_intrinsic(DOT, "A sum plus the dot product of four 8-bit numbers.")
register_intrin_lowering(DOT, target="llvm", f=_for_llvm)
lower_to_function(DOT, "opencl", FUNCTION + "{}")
# TVM's CUDA code calls functions lane by lane.
lower_to_function(DOT, "cuda", FUNCTION + "1")
