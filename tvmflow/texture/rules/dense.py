"""Matrix products and softmax, of plain tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvm import relax

from ...graph.rewriter import constant_array, op_name, shape_of
from ...schedules import dense, softmax
from .. import blocked
from . import moving
from .result import OPAQUE, OUT_ELEMWISE_FUSABLE, Result, Rule, is_float

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


def softmax_rule(layout: LayoutPass, call: relax.Call) -> Result | None:
    """Softmax and log-softmax of plain tensors, as one function with its own schedule."""
    if not is_float(call):
        return None
    expr = layout.bb.emit_te(
        softmax.compute,
        layout.substitute(call.args[0]),
        int(call.attrs.axis) % len(shape_of(call)),
        op_name(call) == "relax.nn.log_softmax",
        primfunc_name_hint="softmax",
        # Opaque to fusion: the row's statistics belong to this function alone.
        primfunc_attrs={"op_pattern": OPAQUE},
    )
    return Result(expr, False)


RULES: dict[str, Rule] = {
    "relax.matmul": matmul_rule,
    "relax.nn.softmax": softmax_rule,
    "relax.nn.log_softmax": softmax_rule,
}
