"""The error function of fp32, as arithmetic on whole vectors.

TVM takes ``erf`` for a function of one number: whatever it is in becomes a loop over lanes, and
each lane a call of `erff`, several times as much as the product before it in a transformer.  Here
it is

    erf x = x + x · p(x²)                   |x| < 1
    erf x = ±(1 - exp(r(|x|)))              beyond, with r(a) = ln(1 - erf a)

with two polynomials, by Chebyshev interpolation.  They leave out less than a unit in the last
place, and the whole is within 2; NaN stays NaN.  Half precision goes by fp32, fp64 stays a call.
CUDA vectorises nothing, and has `erff` of its own.
"""

from __future__ import annotations

import re
from math import erf, erfc

import numpy as np
from numpy.polynomial import Chebyshev, Polynomial
from tvm import tirx
from tvm.ir import Call

from ..ir.expressions import lower_to_function, register_intrinsic
from ..ir.passes import node_pass
from ..ir.rewriter import op_name

#: The operator of TIR: of a vector or a number of fp32.
ERF = "tirx.tvmflow_erf"
#: Its function in OpenCL C; the number of lanes follows.
FUNCTION = "tvmflow_erf_"
register_intrinsic(ERF, "The error function of fp32.")
lower_to_function(ERF, "opencl", FUNCTION + "{}")


@node_pass(Call, targets=("llvm", "opencl"))
def WidenErrorFunctions(call: Call) -> tirx.Expr:
    """Let `erf` be a function of vectors; runs on scalars, before they become vectors."""
    if op_name(call) != "tirx.erf" or call.ty.dtype not in ("float32", "float16"):
        return call
    (argument,), dtype = call.args, call.ty.dtype
    if dtype == "float32":
        return tirx.call_intrin(dtype, ERF, argument)
    return tirx.Cast(dtype, tirx.call_intrin("float32", ERF, tirx.Cast("float32", argument)))


#: From here on the difference to 1 is computed, and beyond the end it is 0.
BEGIN, END = 1.0, 3.95
#: (erf √t) / √t - 1, and ln(1 - erf a).
NEAR_0 = Chebyshev.interpolate(
    np.vectorize(lambda t: erf(t**0.5) / t**0.5 - 1), 5, domain=[0, BEGIN]
).convert(kind=Polynomial)
TAIL = Chebyshev.interpolate(
    np.vectorize(lambda a: np.log(erfc(a))), 8, domain=[BEGIN, END]
).convert(kind=Polynomial)


def _text(polynomial: Polynomial, x: str) -> str:
    """Horner's scheme in OpenCL C."""
    *rest, last = (f"{np.float32(c):.9g}f" for c in polynomial.coef)
    for coefficient in reversed(rest):
        last = f"({last} * {x} + {coefficient})"
    return last


NAME = re.compile(rf"\b{FUNCTION}(\d+)\b")


def definition(match: re.Match[str]) -> str:
    """The function in OpenCL C, of so many lanes."""
    lanes = int(match[1])
    kind = f"float{lanes if lanes > 1 else ''}"
    return f"""\
static inline {kind} {match.group()}({kind} x) {{
  {kind} a = fabs(x), t = x * x;
  {kind} b = select(a, ({kind})({END}f), isgreater(a, ({kind})({END}f)));
  {kind} large = copysign(1.0f - exp({_text(TAIL, "b")}), x);
  return select(large, x + x * {_text(NEAR_0, "t")}, isless(a, ({kind})({BEGIN}f)));
}}
"""
