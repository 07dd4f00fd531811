"""Reductions of blocked tensors: over a picture lane by lane, over channels in one function."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from typing import TYPE_CHECKING

from tvm import relax, te, tirx, topi

from ....ir import blocked
from ....ir.rewriter import ints, op_name, shape_of
from ...legalize import extreme, position
from . import Result, rule

if TYPE_CHECKING:
    from ..layout import LayoutPass

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
def reduction_rule(layout: LayoutPass, call: relax.Call) -> Result | None:
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
def position_rule(layout: LayoutPass, call: relax.Call) -> Result | None:
    """Places of extremes along an axis."""
    if not layout.is_blocked(call.args[0]) or call.attrs.axis is None:
        return None
    axis, find = int(call.attrs.axis) % 4, _POSITION[op_name(call) or ""]
    return _plain(layout, call, lambda t, keepdims: find(t, axis, keepdims))


def _plain(
    layout: LayoutPass, call: relax.Call, reduce: Callable[[te.Tensor, bool], te.Tensor]
) -> Result:
    """The plain result of a blocked tensor, whose channels are read from their lanes."""
    x, keepdims, dtype = call.args[0], bool(call.attrs.keepdims), str(call.ty.dtype)
    channels = shape_of(x)[1]

    def compute(t: te.Tensor) -> te.Tensor:
        result = reduce(blocked.unpack(t, channels), keepdims)
        return result if result.dtype == dtype else topi.cast(result, dtype)

    name = (op_name(call) or "").removeprefix("relax.")
    return Result(layout.emit(name, compute, layout.blocked(x)), False)
