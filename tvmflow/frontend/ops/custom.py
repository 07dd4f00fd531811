"""Nodes of the domain ``ai.tvmflow``: the mathematics that :mod:`tvmflow.ops` has for them."""

from __future__ import annotations

from tvm import relax, te

from ...ir.operator import FUNCTION_ATTRIBUTE
from ...ir.operators import OPERATORS
from ...ops.onnx_form import attributes_of
from .context import NodeContext


def custom(c: NodeContext) -> list[relax.Expr]:
    """One primary function, which is fused and scheduled as those of other operators."""
    operator = OPERATORS[c.op_type]
    attributes = attributes_of(c.node, operator)
    present = [c.has(index) for index in range(len(operator.inputs))]

    def compute(*tensors: te.Tensor) -> list[te.Tensor]:
        given = iter(tensors)
        return operator.tensors([next(given) if here else None for here in present], attributes)

    count = len(operator.outputs)
    call = c.builder.call_te(
        compute,
        *c.inputs(),
        primfunc_name_hint=operator.name,
        primfunc_attrs={FUNCTION_ATTRIBUTE: count},
    )
    if count == 1:
        return [call]
    results = c.emit(call)
    return [relax.TupleGetItem(results, index) for index in range(count)]
