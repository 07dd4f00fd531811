"""Maxima and minima that NaN goes through, and lower limits that it does not.

:mod:`tvmflow.codegen.nan_propagation` writes them for each target.
"""

from __future__ import annotations

from collections.abc import Callable

import tvm_ffi
from tvm import te, tirx

from .expressions import register_intrinsic

#: TVM's codes of integers' types.
INTEGERS = tuple(tvm_ffi.dtype(kind).type_code for kind in ("int32", "uint32"))

AT_LEAST = "tirx.tvmflow_at_least"
register_intrinsic(AT_LEAST, "A float, or its lower limit where that is not less.")


def at_least(value: tirx.Expr, limit: tirx.Expr) -> tirx.Expr:
    """Return ``max(value, limit)``, which is the limit where the value is NaN."""
    return tirx.call_intrin(value.ty, AT_LEAST, value, limit)


def reducer(largest: bool, dtype: str) -> Callable[..., tirx.Expr]:
    """Return the reducer of a maximum or minimum, which starts at an infinity for floats."""
    extreme = te.max if largest else te.min
    if not dtype.startswith(("float", "bfloat")):
        return extreme
    start = float("-inf") if largest else float("inf")
    return te.comm_reducer(
        lambda a, b: extreme(a, b),  # noqa: PLW0108 (its parameters are counted)
        lambda kind: tirx.const(start, kind),
    )


def lowest(dtype: str) -> tirx.Expr:
    """Return the number that none is below, for the padding of a maximum."""
    is_float = dtype.startswith(("float", "bfloat"))
    return tirx.const(float("-inf"), dtype) if is_float else tirx.min_value(dtype)


def never_nan(expr: tirx.Expr) -> bool:
    """Tell whether a value is known to be a number."""
    if isinstance(expr, tirx.FloatImm):
        return expr.value == expr.value
    if isinstance(expr, tirx.Broadcast):
        return never_nan(expr.value)
    if isinstance(expr, tirx.Cast):
        return expr.value.ty.dtype.type_code in INTEGERS or never_nan(expr.value)
    if isinstance(expr, (tirx.Max, tirx.Min)):
        return never_nan(expr.a) and never_nan(expr.b)
    return False
