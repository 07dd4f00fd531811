"""Rules for elementwise operators, with broadcasting."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import partial
from math import prod

import numpy as np
from tvm import relax, te, tirx

from ....ir import blocked
from ....ir.expressions import BROADCAST, INJECTIVE
from ....ir.rewriter import constant_array, op_name, shape_of
from ..layout import Later, LayoutPass, Result, Rule, is_float, rule
from .injective import Index, element

Compare = Callable[["tirx.Expr", "tirx.Expr"], "tirx.Expr"]


def unary_rule(layout: LayoutPass, call: relax.Call) -> Result | None:
    """Rewrite operators of one tensor (further arguments are scalars or attributes)."""
    x = call.args[0]
    if not layout.is_blocked(x):
        return None
    return Result(relax.Call(call.op, [layout.blocked(x), *call.args[1:]], call.attrs), True)


def cast_rule(layout: LayoutPass, call: relax.Call) -> Result | None:
    """Rewrite casts between floating-point types and the integers of quantized networks."""
    for expr in (call, call.args[0]):
        if not is_float(expr) and str(expr.ty.dtype) not in ("int8", "uint8", "int32"):
            return None
    return unary_rule(layout, call)


def binary_rule(layout: LayoutPass, call: relax.Call) -> Result | None:
    """Rewrite operators of two tensors or more."""
    operands = broadcast_operands(layout, list(call.args), shape_of(call))
    return None if operands is None else Result(relax.Call(call.op, operands, call.attrs), True)


def divide_rule(layout: LayoutPass, call: relax.Call) -> Result | None:
    """Rewrite quotients, except of integers.

    Lanes after the last channel are zeros, and an integer division by zero ends the process.
    """
    return binary_rule(layout, call) if is_float(call) else None


def comparison_rule(layout: LayoutPass, call: relax.Call) -> Later | None:
    """Defer comparisons: `where_rule` computes them inside the ``where`` that reads them."""
    return Later.LATER if any(layout.is_blocked(a) for a in call.args) else None


def where_rule(layout: LayoutPass, call: relax.Call) -> Result | None:
    """Rewrite a ``where`` on a comparison or a constant mask, with the comparison inside.

    This avoids tensors of booleans: TVM's OpenCL code is wrong for vectors of them.
    """
    test, shape = call.args[0], shape_of(call)
    if not is_float(call):
        return None
    mask = constant_array(test)
    if mask is not None:
        compare: Compare = operator.gt
        sides = [layout.constant(mask.astype("float32")), layout.constant(np.float32(0.5))]
    else:
        definition = layout.definitions.get(test, test)
        name = op_name(definition) or ""
        if name not in _COMPARISONS or not is_float(definition.args[0]):
            return None
        compare, sides = _COMPARISONS[name], list(definition.args)
    operands = broadcast_operands(layout, [*sides, *call.args[1:]], shape)
    if operands is None:
        return None
    full = blocked.blocked_shape(shape, layout.block)
    compute = partial(choose, compare, full)
    return layout.emit_blocked("choose", compute, *operands, pattern=BROADCAST)


def choose(compare: Compare, shape: Sequence[int], *operands: te.Tensor) -> te.Tensor:
    """Return TE of ``c if compare(a, b) else d`` for four operands that broadcast to ``shape``."""

    def at(x: te.Tensor, index: tuple[Index, ...]) -> tirx.Expr:
        if not x.shape:
            return x()
        tail = index[len(index) - len(x.shape) :]
        return x[tuple(0 if int(e) == 1 else i for i, e in zip(tail, x.shape, strict=True))]

    def body(*index: Index) -> tirx.Expr:
        a, b, c, d = (at(x, index) for x in operands)
        return tirx.Select(compare(a, b), c, d)

    return te.compute(shape, body, name="choose")


def broadcast_operands(
    layout: LayoutPass, args: list[relax.Expr], shape: tuple[int, ...]
) -> list[relax.Expr] | None:
    """Return ``args`` in forms that broadcast to the blocked form of ``shape``, or ``None``.

    At least one of them must be blocked already: operators on plain tensors only stay plain.
    """
    if len(shape) != 4 or not any(layout.is_blocked(a) for a in args):
        return None
    operands = [_operand(layout, arg, shape) for arg in args]
    return None if any(o is None for o in operands) else operands


def _operand(layout: LayoutPass, arg: relax.Expr, shape: tuple[int, ...]) -> relax.Expr | None:
    array = constant_array(arg)
    if array is not None:
        # Keep the axis of a zero: TVM simplifies products with the number zero.
        if array.size == 1 and (array.ndim == 0 or array.any()):
            return layout.constant(array.reshape(()))
        return layout.blocked(layout.constant(array.reshape(_rank_4(array.shape))))
    own = shape_of(arg)
    if prod(own) == 1 and not layout.is_blocked(arg):
        plain = layout.substitute(arg)
        return plain if not own else layout.bb.emit(relax.op.reshape(plain, (1,)))
    full = _rank_4(own)
    if full[1] == shape[1]:
        return layout.blocked_as(arg, full)
    source = layout.blocked(arg) if layout.is_blocked(arg) else layout.plain_as(arg, full)
    return layout.emit("one_channel", one_channel, source, pattern=INJECTIVE)


def one_channel(x: te.Tensor) -> te.Tensor:
    """Return TE of a one-channel picture as ``[N, 1, H, W, 1]``, which broadcasts over blocks."""
    n, _, height, width = (int(d) for d in x.shape[:4])
    return te.compute(
        (n, 1, height, width, 1), lambda i, _k, y, v, _o: element(x, i, 0, y, v), name="one_channel"
    )


def _rank_4(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (1,) * (4 - len(shape)) + tuple(shape)


_UNARY = (
    "nn.relu nn.leakyrelu nn.gelu nn.gelu_tanh nn.silu nn.softplus clip sigmoid tanh exp sqrt "
    "rsqrt abs negative erf log floor ceil round square sin cos tan sinh cosh asin acos atan "
    "asinh acosh atanh sign"
)
_BINARY = "add subtract multiply maximum minimum power"
_COMPARISONS: dict[str, Compare] = {
    "relax.equal": tirx.EQ,
    "relax.less": operator.lt,
    "relax.less_equal": operator.le,
    "relax.greater": operator.gt,
    "relax.greater_equal": operator.ge,
}

RULES: dict[str, Rule] = {
    "relax.astype": cast_rule,
    "relax.divide": divide_rule,
    "relax.where": where_rule,
    **{f"relax.{name}": unary_rule for name in _UNARY.split()},
    **{f"relax.{name}": binary_rule for name in _BINARY.split()},
    **{f"relax.tvmflow.{name}": binary_rule for name in ("quotient", "product", "multiply_add")},
    **dict.fromkeys(_COMPARISONS, comparison_rule),
}
for _name, _rule in RULES.items():
    rule(_name)(_rule)
