"""Reductions of blocked tensors: over a picture lane by lane, over channels in one function."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

from tvm import relax, te, tirx, topi

from ....ir import blocked
from ....ir.rewriter import op_name, shape_of
from ...legalize import extreme, position
from .result import OUT_ELEMWISE_FUSABLE, Result, Rule, ints

if TYPE_CHECKING:
    from ..layout import LayoutPass

#: Of a plain tensor: axes, and whether they stay.
Reduce = Callable[[te.Tensor, Any, bool], te.Tensor]


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
_IN_LANES: dict[str, Callable[..., relax.Expr]] = {
    "relax.mean": relax.op.mean,
    "relax.sum": relax.op.sum,
    "relax.max": relax.op.max,
    "relax.min": relax.op.min,
    "relax.prod": relax.op.prod,
}
_POSITION: dict[str, Reduce] = {
    "relax.argmax": partial(position, largest=True),
    "relax.argmin": partial(position, largest=False),
}


def reduction_rule(layout: LayoutPass, call: relax.Call) -> Result | None:
    """Reductions over any axes: sums, products, extremes."""
    x, attrs = call.args[0], call.attrs
    if not layout.is_blocked(x):
        return None
    axes = tuple(range(4)) if attrs.axis is None else tuple(sorted(a % 4 for a in ints(attrs.axis)))
    if not axes:
        return None
    if not set(axes) <= {2, 3}:
        return _plain(layout, call, _REDUCE[op_name(call) or ""], axes)
    reduced = layout.bb.emit(_IN_LANES[op_name(call) or ""](layout.blocked(x), axes, True))
    if attrs.keepdims:
        return Result(reduced, True)
    shape = shape_of(call)
    plain = layout.bb.emit_te(blocked.unpack, reduced, shape_of(x)[1], primfunc_name_hint="unpack")
    return Result(relax.op.reshape(plain, shape), False)


def position_rule(layout: LayoutPass, call: relax.Call) -> Result | None:
    """Places of extremes along an axis."""
    if not layout.is_blocked(call.args[0]) or call.attrs.axis is None:
        return None
    axis = int(call.attrs.axis) % 4
    return _plain(layout, call, _POSITION[op_name(call) or ""], axis)


def _plain(layout: LayoutPass, call: relax.Call, reduce: Reduce, axes: Any) -> Result:
    """The plain result of a blocked tensor, whose channels are read from their lanes."""
    x, keepdims, dtype = call.args[0], bool(call.attrs.keepdims), str(call.ty.dtype)
    channels = shape_of(x)[1]

    def compute(t: te.Tensor) -> te.Tensor:
        result = reduce(blocked.unpack(t, channels), axes, keepdims)
        return result if result.dtype == dtype else topi.cast(result, dtype)

    expr = layout.bb.emit_te(
        compute,
        layout.blocked(x),
        primfunc_name_hint=(op_name(call) or "").removeprefix("relax."),
        primfunc_attrs={"op_pattern": OUT_ELEMWISE_FUSABLE},
    )
    return Result(expr, False)


RULES: dict[str, Rule] = {
    **dict.fromkeys(_REDUCE, reduction_rule),
    **dict.fromkeys(_POSITION, position_rule),
}
