"""Reductions, softmax and normalisations.

Reductions of blocked tensors are taken over a picture lane by lane, over channels in one function;
the others are functions of whole rows, with a schedule of their own.
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
from ..rule import Layout, Result, is_float, rule

#: Of a plain tensor: axes, and whether they stay.
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
def reduction_rule(layout: Layout, call: relax.Call) -> Result | None:
    """Reductions over any axes: sums, products, extremes."""
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
def position_rule(layout: Layout, call: relax.Call) -> Result | None:
    """Places of extremes along an axis."""
    if not layout.is_blocked(call.args[0]) or call.attrs.axis is None:
        return None
    axis, find = int(call.attrs.axis) % 4, _POSITION[op_name(call) or ""]
    return _plain(layout, call, lambda t, keepdims: find(t, axis, keepdims))


def _plain(
    layout: Layout, call: relax.Call, reduce: Callable[[te.Tensor, bool], te.Tensor]
) -> Result:
    """The plain result of a blocked tensor, whose channels are read from their lanes."""
    x, keepdims, dtype = call.args[0], bool(call.attrs.keepdims), str(call.ty.dtype)
    channels = shape_of(x)[1]

    def compute(t: te.Tensor) -> te.Tensor:
        result = reduce(blocked.unpack(t, channels), keepdims)
        return result if result.dtype == dtype else topi.cast(result, dtype)

    name = (op_name(call) or "").removeprefix("relax.")
    return Result(layout.emit(name, compute, layout.blocked(x)), False)


@rule("relax.nn.softmax", "relax.nn.log_softmax")
def softmax_rule(layout: Layout, call: relax.Call) -> Result | None:
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
def normalization_rule(layout: Layout, call: relax.Call) -> Result | None:
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
