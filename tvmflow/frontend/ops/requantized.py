"""What is quantized again, of quantized operands, as ONNX Runtime computes it.

Its kernels for quantized operators take the scales of operands and result together first, by which
numbers that are nearly between two steps may go to the other one.  So that networks give the same
integers, DequantizeLinear, an operator and QuantizeLinear become, all but scales being integers::

    convolution, product       round((sum + bias) * (sa * sb / sy)) + zy
    a + b                      round(a * (sa / sy) + (b * (sb / sy) + rest))
    a * b                      round((a - za) * (b - zb) * (sa * sb / sy) + zy)
    mean of n                  round(sum(a - za) * (sa / (sy * n))) + zy
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from tvm import relax, tirx

from ...codegen import rounding
from ...ir.rewriter import constant_array, op_name
from .context import NodeContext, constant, dtype_of, shape_of

R = relax.op

_NARROW = ("int8", "uint8")
#: fp32 holds sums of so many differences of 8-bit numbers exactly.
_LARGEST_SUM = 2**24 // 255


@dataclass(frozen=True)
class Requantized:
    """A value in steps of the result's scale, and the zero point that it has already."""

    value: relax.Expr
    zero: int


@dataclass(frozen=True)
class _Quantized:
    """The tensor that a dequantized one comes from; scale and zero point are for all elements."""

    value: relax.Expr
    scale: np.float32
    zero: int

    def real(self, c: NodeContext) -> relax.Expr:
        """The integers as they are, in fp32."""
        return c.emit(R.astype(self.value, "float32"))

    def difference(self, c: NodeContext) -> relax.Expr:
        """The integers less their zero point, in fp32."""
        value = self.real(c)
        return c.emit(R.subtract(value, constant(np.float32(self.zero)))) if self.zero else value


def requantized(
    c: NodeContext, x: relax.Expr, scale: np.float32, zero: int, target: str
) -> Requantized | None:
    """``x`` in steps of ``scale``, if it comes of quantized operands by an operator known here."""
    if dtype_of(x) != "float32" or target not in _NARROW:
        return None
    found = _product(c, x, scale)
    if found is not None:
        return Requantized(found, 0)
    value = _definition(c, x)
    rule = _RULES.get(op_name(value) or "")
    operands = [_quantized(c, a) for a in value.args] if rule is not None else []
    if rule is None or any(o is None for o in operands):
        return None
    known = [o for o in operands if o is not None]
    return rule(c, value, known, scale, (zero, target))


_Target = tuple[int, str]
_Rule = Callable[
    [NodeContext, relax.Call, Sequence[_Quantized], np.float32, _Target], "Requantized | None"
]


def _product(c: NodeContext, x: relax.Expr, scale: np.float32) -> relax.Expr | None:
    """Sums of products in int32, a bias in steps of their scale, and activations."""
    activations = []
    value = _definition(c, x)
    while op_name(value) in ("relax.nn.relu", "relax.clip"):
        activations.append(value)
        value = _definition(c, value.args[0])
    bias = None
    if op_name(value) == "relax.add":
        bias = constant_array(value.args[1])
        if bias is None:
            return None
        value = _definition(c, value.args[0])
    if op_name(value) != "relax.multiply":
        return None
    own = constant_array(value.args[1])
    total = _definition(c, value.args[0])
    if own is None or op_name(total) != "relax.astype" or dtype_of(total.args[0]) != "int32":
        return None
    sums = total.args[0]
    if bias is not None:
        steps = _steps(bias, own)
        if steps is None:
            return None
        sums = c.emit(R.add(sums, constant(steps)))
    ratio = constant((own / scale).astype(np.float32))
    result = c.emit(rounding.product(c.emit(R.astype(sums, "float32")), ratio))
    for activation in reversed(activations):
        if op_name(activation) == "relax.nn.relu":
            result = c.emit(R.nn.relu(result))
        else:
            low, high = (tirx.const(float(limit.value / scale), "float32")
                         for limit in activation.args[1:])  # fmt: skip
            result = c.emit(R.clip(result, low, high))
    return result


def _steps(bias: np.ndarray, scale: np.ndarray) -> np.ndarray | None:
    """A bias in int32, if it is a whole number of steps."""
    with np.errstate(all="ignore"):
        steps = np.rint(bias.astype(np.float64) / scale)
        if not (np.abs(steps) < 2**31).all():
            return None
        whole = steps.astype(np.int32)
        same = whole.astype(np.float32) * scale == bias
    return whole if same.all() else None


def _sum(
    c: NodeContext, _call: relax.Call, operands: Sequence[_Quantized], scale: np.float32,
    target: _Target,
) -> Requantized:  # fmt: skip
    """Of the integers as they are; what their zero points add is constant."""
    a, b = operands
    zero = target[0]
    left, right = a.scale / scale, b.scale / scale
    # Rounded as by fused instructions.
    points = np.float32(np.float64(left) * a.zero + np.float64(np.float32(right * b.zero)))
    rest = np.float32(zero) - points
    value = c.emit(rounding.multiply_add(b.real(c), constant(right), constant(rest)))
    return Requantized(c.emit(rounding.multiply_add(a.real(c), constant(left), value)), zero)


def _times(
    c: NodeContext, _call: relax.Call, operands: Sequence[_Quantized], scale: np.float32,
    target: _Target,
) -> Requantized:  # fmt: skip
    a, b = operands
    zero, dtype = target
    differences = c.emit(R.multiply(a.difference(c), b.difference(c)))
    ratio = constant(np.float32(np.float32(a.scale * b.scale) / scale))
    value = c.emit(rounding.product(differences, ratio))
    # Limits now, so that sums with the zero point are known to be small.
    limits = np.iinfo(dtype)
    value = c.emit(R.clip(value, limits.min - zero, limits.max - zero))
    return Requantized(c.emit(R.add(value, constant(np.float32(zero)))), zero)


def _mean(
    c: NodeContext, call: relax.Call, operands: Sequence[_Quantized], scale: np.float32,
    _target: _Target,
) -> Requantized | None:  # fmt: skip
    (x,) = operands
    axes = [int(axis) for axis in call.attrs.axis]
    count = prod(shape_of(x.value)[axis] for axis in axes)
    if count > _LARGEST_SUM:
        return None
    total = c.emit(R.sum(x.difference(c), axes, bool(call.attrs.keepdims)))
    ratio = np.float32(x.scale / np.float32(scale * np.float32(count)))
    return Requantized(c.emit(rounding.product(total, constant(ratio))), 0)


_RULES: dict[str, _Rule] = {"relax.add": _sum, "relax.multiply": _times, "relax.mean": _mean}


def _quantized(c: NodeContext, expr: relax.Expr) -> _Quantized | None:
    """The quantized tensor that an expression was dequantized from."""
    value = _definition(c, expr)
    if op_name(value) != "relax.tvmflow.product":
        return None
    scale, zero = constant_array(value.args[1]), 0
    if scale is None or scale.size != 1:
        return None
    value = _definition(c, value.args[0])
    if op_name(value) == "relax.subtract":
        point = constant_array(value.args[1])
        if point is None or point.size != 1:
            return None
        zero, value = int(point.reshape(())), _definition(c, value.args[0])
    if op_name(value) != "relax.astype" or dtype_of(value.args[0]) not in _NARROW:
        return None
    return _Quantized(value.args[0], np.float32(scale.reshape(())), zero)


def _definition(c: NodeContext, expr: relax.Expr) -> relax.Expr:
    """What a variable is bound to."""
    found = c.builder.lookup_binding(expr) if isinstance(expr, relax.Var) else None
    return expr if found is None else found
