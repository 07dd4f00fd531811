"""Rules for reductions, softmax and normalisations.

Blocked tensors are reduced over a picture lane by lane; reductions that include channels are one
function of plain indices.  Softmax and normalisations are row reductions with their own schedules.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod

from tvm import relax, te, tirx, topi

from ....ir import blocked
from ....ir.rewriter import constant_array, ints, op_name, shape_of
from ....schedules import normalization, softmax
from ...legalize import extreme, position
from ..layout import LayoutPass, Result, is_float, rule

#: A reduction of a plain tensor over axes, which the last argument keeps with extent 1.
Reduce = Callable[[te.Tensor, tuple[int, ...], bool], te.Tensor]


def _mean(x: te.Tensor, axes: tuple[int, ...], keepdims: bool) -> te.Tensor:
    count = prod(int(x.shape[a]) for a in axes)
    return topi.divide(topi.sum(x, axes, keepdims), tirx.const(count, x.dtype))


_REDUCE: dict[str, Reduce] = {
    "relax.mean": _mean,
    "relax.sum": topi.sum,
    "relax.max": partial(extreme, largest=True),
    "relax.min": partial(extreme, largest=False),
    "relax.prod": topi.prod,
}
_POSITION: dict[str, Callable[[te.Tensor, int, bool], te.Tensor]] = {
    "relax.argmax": partial(position, largest=True),
    "relax.argmin": partial(position, largest=False),
}


@rule(*_REDUCE)
def reduction_rule(layout: LayoutPass, call: relax.Call) -> Result | None:
    """Rewrite reductions over any axes: sums, products, extremes."""
    x, attrs, name = call.args[0], call.attrs, op_name(call) or ""
    if not layout.is_blocked(x):
        return None
    axes = tuple(range(4)) if attrs.axis is None else tuple(sorted(a % 4 for a in ints(attrs.axis)))
    if not axes:
        return None
    if not set(axes) <= {2, 3}:
        return _plain(layout, call, lambda t, keepdims: _REDUCE[name](t, axes, keepdims))
    in_lanes = getattr(relax.op, name.removeprefix("relax."))
    reduced = layout.bb.emit(in_lanes(layout.blocked(x), axes, True))
    if attrs.keepdims:
        return Result(reduced, True)
    plain = layout.emit("unpack", blocked.unpack, reduced, shape_of(x)[1], pattern=None)
    return Result(relax.op.reshape(plain, shape_of(call)), False)


@rule(*_POSITION)
def position_rule(layout: LayoutPass, call: relax.Call) -> Result | None:
    """Rewrite positions of extremes along an axis."""
    if not layout.is_blocked(call.args[0]) or call.attrs.axis is None:
        return None
    axis, find = int(call.attrs.axis) % 4, _POSITION[op_name(call) or ""]
    return _plain(layout, call, lambda t, keepdims: find(t, axis, keepdims))


def _plain(
    layout: LayoutPass, call: relax.Call, reduce: Callable[[te.Tensor, bool], te.Tensor]
) -> Result:
    """Emit the plain result of reducing a blocked tensor, whose channels are read from lanes."""
    x, keepdims, dtype = call.args[0], bool(call.attrs.keepdims), str(call.ty.dtype)
    channels = shape_of(x)[1]

    def compute(t: te.Tensor) -> te.Tensor:
        result = reduce(blocked.unpack(t, channels), keepdims)
        return result if result.dtype == dtype else topi.cast(result, dtype)

    name = (op_name(call) or "").removeprefix("relax.")
    return Result(layout.emit(name, compute, layout.blocked(x)), False)


@rule("relax.nn.softmax", "relax.nn.log_softmax")
def softmax_rule(layout: LayoutPass, call: relax.Call) -> Result | None:
    """Rewrite softmax and log-softmax, with plain results."""
    if not is_float(call):
        return None
    x, log = call.args[0], op_name(call) == "relax.nn.log_softmax"
    axis, channels = int(call.attrs.axis) % len(shape_of(call)), shape_of(call)[1:2]
    # Vectors on CPUs are along pixels, which are adjacent in plain tensors only.
    in_lanes = layout.is_blocked(x) and axis == 1 and not layout.device.is_cpu
    expr = layout.emit(
        "softmax",
        lambda t: softmax.compute(blocked.unpack(t, *channels) if in_lanes else t, axis, log),
        layout.blocked(x) if in_lanes else layout.substitute(x),
    )
    return Result(expr, False)


@rule("relax.nn.layer_norm", "relax.nn.rms_norm")
def normalization_rule(layout: LayoutPass, call: relax.Call) -> Result | None:
    """Rewrite normalisations of layers, instances, groups or by the root mean square.

    Scale and bias are separate operators after it: the call's own must be neutral.
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
    # Statistics over a picture are per channel, and stay in their lanes.
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
