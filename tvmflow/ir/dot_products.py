"""The operator of TIR for dot products of four 8-bit numbers.

:mod:`tvmflow.codegen.dot_products` has it for each target.
"""

from __future__ import annotations

from tvm import tirx

from .expressions import register_intrinsic

DOT = "tirx.tvmflow_dot4"
register_intrinsic(DOT, "A sum plus the dot product of four 8-bit numbers.")


def dot(total: tirx.Expr, x: tirx.Expr, w: tirx.Expr) -> tirx.Expr:
    """Return ``total`` plus the products of the four bytes of ``x`` and ``w``."""
    return tirx.call_intrin("int32", DOT, total, x, w)
