"""Search and substitution of IR nodes; registration of our own Relax and TIR operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import tvm
import tvm_ffi
from tvm import relax, s_tir, tirx
from tvm.ir import Call
from tvm.relax.transform.legalize_ops.common import register_legalize
from tvm.tirx.op import register_intrin_lowering

if TYPE_CHECKING:
    from tvm.ir import Node

Found = TypeVar("Found")

#: The conditional expression that evaluates only one of its branches.
CHOICE = "prim.if_then_else"

#: TVM's ``op_pattern`` numbers: how results depend on operands, which decides on fusion.
ELEMENTWISE, BROADCAST, INJECTIVE, REDUCTION, PRODUCT, OPAQUE = 0, 1, 2, 3, 4, 8


def nodes_in(root: object, *kinds: type[Found]) -> list[Found]:
    """Return the nodes of these classes within a node or a list of nodes, in TVM's order."""
    found: list[Found] = []
    tvm_ffi.structural_walk(root, (kinds, found.append))
    return found


def substitute_vars(node: Found, values: Mapping[tirx.Var, tirx.Expr]) -> Found:
    """Replace variables of a TIR or Relax node with expressions."""
    return tvm_ffi.structural_map(node, (tirx.Var, lambda var: values.get(var, var)))


#: Fields of nodes that `with_fields` rebuilds, in the order of their constructors.
_FIELDS: dict[type, tuple[str, ...]] = {
    tirx.For: (
        "loop_var", "min", "extent", "kind", "body", "thread_binding", "annotations", "step",
    ),
    s_tir.SBlock: (
        "iter_vars", "reads", "writes", "name_hint", "body", "init", "alloc_buffers",
        "match_buffers", "annotations",
    ),
}  # fmt: skip


def with_fields(node: Found, **fields: Any) -> Found:
    """Return a copy of a loop or block with other values for some of its fields."""
    kind = type(node)
    return kind(*(fields.get(name, getattr(node, name)) for name in _FIELDS[kind]))


def uses(expr: Node, var: tirx.Var | None) -> bool:
    """Return whether a variable occurs in an expression; ``None`` never does."""
    return var is not None and any(found.same_as(var) for found in nodes_in(expr, tirx.Var))


def conjuncts(test: tirx.Expr) -> list[tirx.Expr]:
    """Split a conjunction into its conditions."""
    return [*conjuncts(test.a), *conjuncts(test.b)] if isinstance(test, tirx.And) else [test]


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
    tvm.ir.register_op_attr(name, "TCallEffectKind", 1)  # pure
    tvm.ir.register_op_attr(name, "TScriptPrinterName", name.removeprefix("tirx."))


def lower_to_function(operator: str, target: str, function: str) -> None:
    """Lower a TIR operator to a call of an external function on a target.

    A ``{}`` in the function's name is replaced with the number of lanes.
    """

    def call(call: Call) -> tirx.Expr:
        return tirx.call_pure_extern(call.ty, function.format(call.ty.dtype.lanes), *call.args)

    register_intrin_lowering(operator, target=target, f=call, level=99)
