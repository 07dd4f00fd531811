"""Dot products of four 8-bit numbers, summed up in int32: ``s + x0*w0 + x1*w1 + x2*w2 + x3*w3``.

CPUs and GPUs have an instruction for it.  Here it is one TIR operator on 32-bit numbers that hold
four bytes each, the lowest first: those of ``x`` are unsigned, those of ``w`` signed, and on Arm's
processors both are signed (`Device.signed_dots`).  TVM vectorises it lane by lane.  A sum over
dot products, in TE ``sum(dot(0, x, w))``, becomes a chain of them (`ChainDots`)::

    acc[0:16] = acc[0:16] + dot(0, x, w[0:16])      acc[0:16] = dot(acc[0:16], x, w[0:16])

:mod:`tvmflow.ir.dot_products` lowers it for each target; the functions that it calls in OpenCL C
and CUDA C++ are here, and are defined before the kernels.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import tirx

from ..ir.dot_products import DOT, FUNCTION
from ..ir.passes import node_pass
from ..ir.rewriter import op_name
from .cuda_passes import fill_with_zeros
from .nan_propagation import with_cuda_functions


@node_pass(tirx.Add)
def ChainDots(add: tirx.Add) -> tirx.Expr:
    """Let dot products accumulate onto the sum that they are added to."""
    product = add.b
    if op_name(product) != DOT:
        return add
    return tirx.call_intrin(product.ty, DOT, add.a, *product.args[1:])


#: Functions for vectors of two and more lanes, by halves.
_HALVES = (
    "static inline int{n} tvmflow_dot4_{n}(int{n} s, int{n} x, int{n} w) {{\n"
    "  return (int{n})(tvmflow_dot4_{h}(s.lo, x.lo, w.lo), tvmflow_dot4_{h}(s.hi, x.hi, w.hi));\n"
    "}}\n"
)

# The functions for phones are tried in this order; `TVMFLOW_NO_DOT_PRODUCTS` is for drivers with
# known faults, and `TVMFLOW_QCOM_DOT8` is set where the runtime has found Qualcomm's function right
# (native/standalone/dot_products.c).  Arm's takes signed bytes only: a flipped sign bit subtracts
# 128 from x, and the products of 128 and w are the same for all x of a tile.
#
# The feature, not the extension, shows that a driver has the packed functions: Intel's CPU runtime
# reports cl_khr_integer_dot_product, but has none of them in OpenCL C 1.2.
#
# If a driver compiles for x86 (PoCL), instructions are written as assembly: OpenCL C has no name
# for them.  Our runtime detects whether the CPU has dot products, as drivers compile for an older
# one.  Products of pairs, which all CPUs with AVX-512 have, take four instructions instead of one.
# Without any of these, four products and sums in fp32 are fastest on all devices, and exact: none
# exceeds 4 * 255 * 128.  Kernels are built as one program, and each has the functions.
OPENCL = (
    """\
#ifndef TVMFLOW_DOT4
#define TVMFLOW_DOT4
#if defined(TVMFLOW_NO_DOT_PRODUCTS)
#define TVMFLOW_PLAIN_DOT4
#elif defined(__opencl_c_integer_dot_product_input_4x8bit_packed)
static inline int tvmflow_dot4_1(int s, int x, int w) {
  return dot_acc_sat_4x8packed_us_int(as_uint(x), as_uint(w), s);
}
#elif defined(TVMFLOW_QCOM_DOT8)
#pragma OPENCL EXTENSION cl_qcom_dot_product8 : enable
static inline int tvmflow_dot4_1(int s, int x, int w) {
  return qcom_dot8_acc(as_uint(w), as_uint(x), s);
}
#elif defined(cl_arm_integer_dot_product_accumulate_int8)
#pragma OPENCL EXTENSION cl_arm_integer_dot_product_accumulate_int8 : enable
static inline int tvmflow_dot4_1(int s, int x, int w) {
  const int sum = arm_dot_acc(as_char4(x ^ (int)0x80808080u), as_char4(w), s);
  return sum - arm_dot_acc((char4)(-128), as_char4(w), 0);
}
#else
#define TVMFLOW_PLAIN_DOT4
#endif
#ifdef TVMFLOW_PLAIN_DOT4
static inline int tvmflow_dot4_1(int s, int x, int w) {
  return s + convert_int(dot(convert_float4(as_uchar4(x)), convert_float4(as_char4(w))));
}
#endif
"""
    + "".join(_HALVES.format(n=n, h=n // 2 if n > 2 else 1) for n in (2, 4, 8))
    + """\
#if defined(__AVX512F__) && (defined(TVMFLOW_AVX512_VNNI) || defined(__AVX512VNNI__))
static inline int16 tvmflow_dot4_16(int16 s, int16 x, int16 w) {
  __asm__("vpdpbusd %2, %1, %0" : "+v"(s) : "v"(x), "v"(w));
  return s;
}
#elif defined(__AVX512BW__)
static inline int16 tvmflow_pairs(int16 x, int16 w) {
  int16 sums;
  __asm__("vpmaddwd %2, %1, %0" : "=v"(sums) : "v"(x), "v"(w));
  return sums;
}
static inline int16 tvmflow_dot4_16(int16 s, int16 x, int16 w) {
  int16 even, odd;
  __asm__("vpsllw $8, %1, %0" : "=v"(even) : "v"(w));
  __asm__("vpsraw $8, %1, %0" : "=v"(even) : "v"(even));
  __asm__("vpsraw $8, %1, %0" : "=v"(odd) : "v"(w));
  return s + tvmflow_pairs(x & 0x00ff00ff, even) + tvmflow_pairs((x >> 8) & 0x00ff00ff, odd);
}
#else
static inline int16 tvmflow_dot4_16(int16 s, int16 x, int16 w) {
  for (int byte = 0; byte < 32; byte += 8) {
    s += ((x >> byte) & 255) * ((w << (24 - byte)) >> 24);
  }
  return s;
}
#endif
#endif
"""
)

# CUDA C++ only has functions for factors that are both signed or both unsigned.
CUDA = """\
static __device__ __forceinline__ int tvmflow_dot4_1(int s, int x, int w) {
#if defined(__CUDACC__)
  asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(s) : "r"(x), "r"(w), "r"(s));
#else
  for (int byte = 0; byte < 32; byte += 8) s += (x >> byte & 255) * (signed char)(w >> byte);
#endif
  return s;
}
"""


def with_functions(source: str, functions: str) -> str:
    """Add the functions that kernels call before them."""
    return functions + source if FUNCTION in source else source


@tvm_ffi.register_global_func("tvm_callback_cuda_postproc", override=True)
def postprocess_cuda(source: str, _target: tvm.target.Target) -> str:
    """Rewrite the source of all kernels; TVM calls this."""
    return with_cuda_functions(with_functions(fill_with_zeros(source), CUDA))
