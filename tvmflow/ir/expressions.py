"""Questions about TIR expressions that schedules and lowering both ask."""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx


def uses(expr: Any, var: Any) -> bool:
    """Whether a variable occurs in an expression; ``None`` occurs in none."""
    found: list[Any] = []

    def visit(node: Any) -> None:
        if var is not None and node.same_as(var):
            found.append(node)

    tvm_ffi.structural_walk(expr, (tirx.Var, visit))
    return bool(found)


def nodes_in(node: tirx.Stmt | tirx.Expr, *kinds: type) -> list[Any]:
    """Nodes of some kinds in a statement or an expression, in its order."""
    found: list[Any] = []
    tvm_ffi.structural_walk(node, [(kind, found.append) for kind in kinds])
    return found


def conjuncts(test: Any) -> list[Any]:
    """The conditions that must all hold."""
    if isinstance(test, tirx.And):
        return [*conjuncts(test.a), *conjuncts(test.b)]
    return [test]
