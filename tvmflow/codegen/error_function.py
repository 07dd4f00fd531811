"""The error function of fp32, as arithmetic on whole vectors.

TVM treats ``erf`` as a function of scalars: its statement becomes a loop over lanes with a call of
`erff` for each, several times the cost of the preceding product in a transformer.  Here it is

    erf x = x + x · p(x²)                   |x| < 1
    erf x = ±(1 - exp(r(|x|)))              beyond, with r(a) = ln(1 - erf a)

with two polynomials, by Chebyshev interpolation.  Their error is less than a unit in the last
place, and the total error is within 2; NaN stays NaN.  Half precision is computed in fp32, fp64
remains a call.  CUDA does not vectorise, and has its own `erff`.
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

#: The TIR operator, for vectors and scalars of fp32.
ERF = "tirx.tvmflow_erf"
#: Prefix of its function in OpenCL C; the number of lanes follows.
FUNCTION = "tvmflow_erf_"
register_intrinsic(ERF, "The error function of fp32.")
lower_to_function(ERF, "opencl", FUNCTION + "{}")


@node_pass(Call, targets=("llvm", "opencl"))
def WidenErrorFunctions(call: Call) -> tirx.Expr:
    """Replace `erf` by a function of vectors; runs on scalars, before they become vectors."""
    if op_name(call) != "tirx.erf" or call.ty.dtype not in ("float32", "float16"):
        return call
    (argument,), dtype = call.args, call.ty.dtype
    if dtype == "float32":
        return tirx.call_intrin(dtype, ERF, argument)
    return tirx.Cast(dtype, tirx.call_intrin("float32", ERF, tirx.Cast("float32", argument)))


#: Beyond the first the difference to 1 is computed, and beyond the second it is 0.
BEGIN, END = 1.0, 3.95
#: (erf √t) / √t - 1, and ln(1 - erf a).
NEAR_0 = Chebyshev.interpolate(
    np.vectorize(lambda t: erf(t**0.5) / t**0.5 - 1), 5, domain=[0, BEGIN]
).convert(kind=Polynomial)
TAIL = Chebyshev.interpolate(
    np.vectorize(lambda a: np.log(erfc(a))), 8, domain=[BEGIN, END]
).convert(kind=Polynomial)


def _text(polynomial: Polynomial, x: str) -> str:
    """Return Horner's scheme for a polynomial in OpenCL C."""
    *rest, last = (f"{np.float32(c):.9g}f" for c in polynomial.coef)
    for coefficient in reversed(rest):
        last = f"({last} * {x} + {coefficient})"
    return last


NAME = re.compile(rf"\b{FUNCTION}(\d+)\b")


def definition(match: re.Match[str]) -> str:
    """Return the function in OpenCL C for a number of lanes."""
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
