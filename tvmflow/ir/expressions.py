"""Nodes of programs: finding them, and operators of TIR that are ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

import tvm
import tvm_ffi
from tvm import tirx

if TYPE_CHECKING:
    from tvm.ir import Node

_PURE = 1


def nodes_in(node: Node, *kinds: type) -> list[Node]:
    """Nodes of these classes within a node, in the order of TVM's walk."""
    found: list[Node] = []
    tvm_ffi.structural_walk(node, (kinds, found.append))
    return found


def uses(expr: Node, var: tirx.Var | None) -> bool:
    """True if a variable occurs in an expression; ``None`` occurs in none."""
    return var is not None and any(found.same_as(var) for found in nodes_in(expr, tirx.Var))


def conjuncts(test: tirx.PrimExpr) -> list[tirx.PrimExpr]:
    """The conditions that must all hold."""
    if isinstance(test, tirx.And):
        return [*conjuncts(test.a), *conjuncts(test.b)]
    return [test]


def register_intrinsic(name: str, summary: str) -> None:
    """Register a pure operator of TIR, ``tirx.NAME``, that TVM vectorises lane by lane."""
    tvm.ir._ffi_api.RegisterOp(name, summary)
    tvm.ir.register_op_attr(name, "TVectorizable", True)
    tvm.ir.register_op_attr(name, "TCallEffectKind", _PURE)
    tvm.ir.register_op_attr(name, "TScriptPrinterName", name.removeprefix("tirx."))
