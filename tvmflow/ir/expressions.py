"""Nodes of programs: finding them, and operators of Relax and TIR that are ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.relax.transform.legalize_ops.common import register_legalize

if TYPE_CHECKING:
    from tvm.ir import Node

_PURE = 1

Found = TypeVar("Found")


def nodes_in(root: object, *kinds: type[Found]) -> list[Found]:
    """Nodes of these classes within a node or a list of some, in the order of TVM's walk."""
    found: list[Found] = []
    tvm_ffi.structural_walk(root, (kinds, found.append))
    return found


def uses(expr: Node, var: tirx.Var | None) -> bool:
    """True if a variable occurs in an expression; ``None`` occurs in none."""
    return var is not None and any(found.same_as(var) for found in nodes_in(expr, tirx.Var))


def conjuncts(test: tirx.Expr) -> list[tirx.Expr]:
    """The conditions that must all hold."""
    if isinstance(test, tirx.And):
        return [*conjuncts(test.a), *conjuncts(test.b)]
    return [test]


def register_operator(
    name: str,
    summary: str,
    result_type: Callable[[relax.Call, relax.BlockBuilder], relax.Type],
    legalize: Callable[[relax.BlockBuilder, relax.Call], relax.Expr],
) -> None:
    """Register a pure operator of Relax with the type of its result and its TIR."""
    tvm.ir._ffi_api.RegisterOp(name, summary)
    tvm.ir.register_op_attr(name, "FInferType", result_type)
    tvm.ir.register_op_attr(name, "FPurity", True)
    register_legalize(name, legalize)


def register_intrinsic(name: str, summary: str) -> None:
    """Register a pure operator of TIR, ``tirx.NAME``, that TVM vectorises lane by lane."""
    tvm.ir._ffi_api.RegisterOp(name, summary)
    tvm.ir.register_op_attr(name, "TVectorizable", True)
    tvm.ir.register_op_attr(name, "TCallEffectKind", _PURE)
    tvm.ir.register_op_attr(name, "TScriptPrinterName", name.removeprefix("tirx."))
