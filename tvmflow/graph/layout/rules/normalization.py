"""Softmax and normalisations: functions of whole rows, with a schedule of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvm import relax

from ....ir import blocked
from ....ir.rewriter import constant_array, ints, op_name, shape_of
from ....schedules import normalization, softmax
from . import Result, is_float, rule

if TYPE_CHECKING:
    from ..layout import LayoutPass


@rule("relax.nn.softmax", "relax.nn.log_softmax")
def softmax_rule(layout: LayoutPass, call: relax.Call) -> Result | None:
    """Softmax and log-softmax, with plain results."""
    if not is_float(call):
        return None
    x, log = call.args[0], op_name(call) == "relax.nn.log_softmax"
    axis, channels = int(call.attrs.axis) % len(shape_of(call)), shape_of(call)[1:2]
    # A CPU's vectors lie along pixels, which are neighbours in a plain tensor only.
    in_lanes = layout.is_blocked(x) and axis == 1 and not layout.device.is_cpu
    expr = layout.emit(
        "softmax",
        lambda t: softmax.compute(blocked.unpack(t, *channels) if in_lanes else t, axis, log),
        layout.blocked(x) if in_lanes else layout.substitute(x),
    )
    return Result(expr, False)


@rule("relax.nn.layer_norm", "relax.nn.rms_norm")
def normalization_rule(layout: LayoutPass, call: relax.Call) -> Result | None:
    """Normalisation of layers, instances, groups or by the root mean square.

    Scale and bias are operators of their own behind it: those of the call must do nothing.
    """
    x, *parameters = call.args
    rank = len(shape_of(x))
    axes = sorted(a % rank for a in ints(call.attrs.axes))
    for neutral, parameter in zip((1, 0), parameters, strict=False):
        array = constant_array(parameter)
        if array is None or (array != neutral).any():
            return None
    if not is_float(call) or str(call.ty.dtype) != "float32":
        return None
    # A picture's statistics are those of its channels, which stay in their lanes.
    in_lanes = layout.is_blocked(x) and set(axes) <= {2, 3}
    expr = layout.emit(
        "normalize",
        normalization.compute,
        layout.blocked(x) if in_lanes else layout.substitute(x),
        axes,
        float(call.attrs.epsilon),
        op_name(call) == "relax.nn.layer_norm",
    )
    return Result(expr, in_lanes)
