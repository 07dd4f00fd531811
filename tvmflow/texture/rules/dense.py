"""Matrix products of plain tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvm import relax

from ...graph.rewriter import constant_array, shape_of
from ...schedules import dense
from .. import blocked
from . import moving
from .result import OUT_ELEMWISE_FUSABLE, Result, Rule

if TYPE_CHECKING:
    from ..layout import LayoutPass


def matmul_rule(layout: LayoutPass, call: relax.Call) -> Result | None:
    """A product with constant weights (packed) or large ones (``[K, N]`` or ``[N, K]``)."""
    x, weight = call.args
    if len(shape_of(call)) == 4:
        return moving.mix_rule(layout, call)
    if len(shape_of(x)) != 2 or len(shape_of(weight)) != 2:
        return None
    if str(call.ty.dtype) != "float32":
        return None
    array = constant_array(weight)
    attrs = {"op_pattern": OUT_ELEMWISE_FUSABLE}
    if array is not None:
        packed = layout.constant(blocked.dense_weight(array, layout.block))
        expr = layout.bb.emit_te(
            dense.compute_packed,
            layout.substitute(x),
            packed,
            array.shape[1],
            sums=layout.sums(call, array.shape[0], array),
            primfunc_name_hint="dense",
            primfunc_attrs=attrs,
        )
        return Result(expr, False)
    rows = layout.transposed_parameter(weight)
    if rows is None and not layout.is_parameter(weight):
        return None
    expr = layout.bb.emit_te(
        dense.compute_columns if rows is None else dense.compute_rows,
        layout.substitute(x),
        layout.substitute(weight) if rows is None else rows,
        layout.block,
        primfunc_name_hint="dense",
        primfunc_attrs=attrs,
    )
    return Result(expr, False)


RULES: dict[str, Rule] = {
    "relax.matmul": matmul_rule,
}
