"""Converters of quantization and of operators that compute in integers.

Quantized networks have two forms.  In one, operators read 8-bit numbers (QLinearConv); zero points
are subtracted from the operands, from constant ones at import.  In the other, real operators are
between DequantizeLinear and QuantizeLinear, and their products are computed in integers::

    DequantizeLinear(x) · DequantizeLinear(w) = sum((x - zx) (w - zw)) · sx · sw

with the sum in int32, exact.  The layout pass recovers the 8-bit tensors from the differences
(:mod:`tvmflow.graph.layout.quantized`).

ONNX Runtime's kernels for quantized operators multiply the scales of operands and result first, so
numbers near the middle between two steps may round differently.  To give the same integers,
DequantizeLinear, an operator and QuantizeLinear become, with integers except for scales::

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
from tvm.relax import op as R

from ...ir import rounding
from ...ir.limits import LARGE_WEIGHT_BYTES
from ...ir.rewriter import constant, constant_array, narrow_source, op_name, shape_of
from ..converter import InvalidNode, NodeContext, Refusal, converts, dtype_of, shape_along
from ..graph import node_attributes

_BYTES = ("int8", "uint8")
_QUANTIZED = (*_BYTES, "int16", "uint16")
#: Number of differences of 8-bit numbers whose sum is exact in fp32.
_LARGEST_SUM = 2**24 // 255


@converts("QuantizeLinear")
def quantize(c: NodeContext) -> relax.Expr:
    """Return round(x / scale) + zero point, with ties to even, clamped to the type's range."""
    target = c.result.dtype
    if target not in _QUANTIZED:
        raise Refusal(f"{target} is not supported")
    if c.attribute("precision", 0) not in (0, 1):
        raise Refusal("only division in float32 is supported")
    scale, zero = _parameters(c, "float32")
    x = c.emit(c.cast(c.input(), "float32"))
    points = c.known(2) if c.has(2) else np.zeros(1, np.int32)
    if points is not None and points.size == 1:
        point, values = int(points.reshape(())), c.known(1)
        if values is not None and values.size == 1:
            asked = _Target(np.float32(values.reshape(())), point, target)
            same = _same_steps(c, x, asked)
            if same is not None:
                return same
            found = _requantized(c, x, asked)
            if found is not None:
                value, added = found
                return _rounded(value, point - added, target)
        return _rounded(rounding.quotient(x, scale), point, target)
    value = R.round(rounding.quotient(x, scale))
    value = _limited(value if zero is None else value + zero, target)
    # Vectors of floats are converted to 32-bit integers, and these to 8 bits, by one instruction
    # each; a direct conversion is done one number at a time.
    return R.astype(R.astype(value, "int32"), target)


def _rounded(value: relax.Expr, zero: int, target: str) -> relax.Expr:
    """Return round(value) + zero point, with ties to even, clamped to an integer type's range.

    The value is clamped before it is rounded, which is equivalent and makes rounding cheap
    (:mod:`tvmflow.codegen.rounding`).
    """
    value = R.astype(R.round(_limited(value, target, zero)), "int32")
    return R.astype(value + constant(np.int32(zero)) if zero else value, target)


def _limited(value: relax.Expr, target: str, zero: int = 0) -> relax.Expr:
    """Clamp a value so that its sum with a zero point is in an integer type's range."""
    limits = np.iinfo(target)
    return R.clip(value, limits.min - zero, limits.max - zero)


@converts("DequantizeLinear")
def dequantize(c: NodeContext) -> relax.Expr:
    """Return (x - zero point) · scale."""
    if c.dtype() not in (*_QUANTIZED, "int32"):
        raise Refusal(f"{c.dtype()} is not supported")
    # A difference of 32-bit numbers is not exact in float32.
    difference_dtype = "int32" if c.dtype() == "int32" else "float32"
    scale, zero = _parameters(c, difference_dtype)
    value = c.cast(c.input(), difference_dtype)
    value = value if zero is None else value - zero
    result = rounding.product(c.cast(value, "float32"), scale)
    return result if c.result.dtype == "float32" else R.astype(result, c.result.dtype)


def _parameters(c: NodeContext, zero_dtype: str) -> tuple[relax.Expr, relax.Expr | None]:
    """Return scale (in float32) and zero point, reshaped to broadcast along their axis."""
    if c.attribute("block_size", 0):
        scale, *zeros = (_of_blocks(c, index) for index in (1, 2) if c.has(index))
        return c.cast(scale, "float32"), c.cast(zeros[0], zero_dtype) if zeros else None
    rank, count = len(c.shape()), prod(c.shape(1))
    shape: list[int] = []
    if c.shape(1) != () and rank > 0:
        shape = [1] * rank
        if count != 1 or c.shape(1) != (1,) or rank == 1:
            axis = c.axis(1) if rank > 1 else 0
            if count not in (c.shape()[axis], 1):
                raise Refusal(f"it has {count} scales for an axis of {c.shape()[axis]}")
            shape[axis] = count

    zero = c.cast(c.reshaped(2, shape), zero_dtype) if c.has(2) else None
    return c.cast(c.reshaped(1, shape), "float32"), zero


def _of_blocks(c: NodeContext, index: int) -> relax.Expr:
    """Return scales or zero points of blocks along an axis, repeated for each element."""
    axis, block = c.axis(1), c.attribute("block_size", 0)
    blocks, extent = list(c.shape(index)), c.shape()[axis]
    expected = [-(-n // block) if a == axis else n for a, n in enumerate(c.shape())]
    if blocks != expected:
        raise InvalidNode(f"its blocks of {block} are {blocks}, expected {expected}")
    places = constant((np.arange(extent) // block).astype(np.int32))
    known = c.known(index)
    if known is not None:
        return constant(np.repeat(known, block, axis).take(range(extent), axis))
    return R.take(c.input(index), places, axis, "clip")


@converts("DynamicQuantizeLinear")
def dynamic_quantize(c: NodeContext) -> list[relax.Expr]:
    """Quantize to uint8 with scale and zero point from the extremes of the values.

    If all values are zero the scale is one, as in ONNX Runtime; in ONNX's definition it is zero,
    and the result a quotient of two zeros.
    """
    x, zero, one = c.input(), c.constant(0), c.constant(1)
    lowest = R.minimum(R.min(x), zero)
    span = R.maximum(R.max(x), zero) - lowest
    scale = R.where(R.equal(span, zero), one, rounding.quotient(span, c.constant(255)))
    point = _limited(R.round(rounding.quotient(-lowest, scale)), "uint8")
    value = R.round(rounding.quotient(x, scale)) + point
    return [R.astype(_limited(value, "uint8"), "uint8"), scale, R.astype(point, "uint8")]


# Operators on 8-bit numbers ------------------------------------------------------------


def difference(c: NodeContext, index: int, zero: int, axis: int | None) -> relax.Expr:
    """Return an operand minus its zero point, in int32; both are given as indices of inputs.

    A vector of zero points is along ``axis`` of the operand.
    """
    count = prod(c.shape(zero)) if c.has(zero) else 0
    shape = per_axis_shape(count, c.shape(index), axis)
    value = c.cast(c.input(index), "int32")
    return value - c.cast(c.reshaped(zero, shape), "int32") if count else value


def per_axis_shape(count: int, shape: tuple[int, ...], axis: int | None) -> list[int]:
    """Return the shape that broadcasts scales or zero points along an axis of an operand."""
    if count <= 1:
        return []
    if axis is None or count != shape[axis]:
        raise Refusal(f"it has {count} zero points or scales for an operand of {list(shape)}")
    return shape_along(axis, len(shape))


def requantize(
    c: NodeContext, total: relax.Expr, scales: tuple[int, int, int], zero: int, axis: int
) -> relax.Expr:
    """Return round(total · left · right / result) + zero point, clamped to the result's type.

    ``scales`` are the indices of these inputs; the right one may be a vector along ``axis``.
    """
    left, right, result = (c.array(i, "scales").astype(np.float32) for i in scales)
    points = c.array(zero, "zero points")
    if left.size > 1 or result.size > 1:
        raise Refusal("only the second operand may have a scale for each column")
    ratio = left.reshape(()) * right / result.reshape(())
    shape = per_axis_shape(ratio.size, c.result.shape, axis)
    scale = constant(ratio.astype(np.float32).reshape(shape))
    value = rounding.product(R.astype(total, "float32"), scale)
    return _rounded(value, int(points.reshape(())), c.result.dtype)


# Products of dequantized numbers -------------------------------------------------------


@dataclass(frozen=True)
class IntegerProduct:
    """Operands of a product minus their zero points, in int32."""

    x: relax.Expr
    weight: np.ndarray
    #: Scale of the sums: one number, or one for each output.
    scale: np.ndarray

    def scaled(self, c: NodeContext, total: relax.Expr, axis: int) -> relax.Expr:
        """Scale sums from int32 to real numbers; a vector of scales is along ``axis``."""
        value = R.astype(total, "float32")
        shape = shape_along(axis, len(c.result.shape))
        return value * constant(self.scale.reshape(shape))


def integer_product(
    c: NodeContext, axis: int, *, transposed: bool = False
) -> IntegerProduct | None:
    """Return the product of the first two inputs, if they are bytes and the weights constant.

    ``axis`` is the weights' axis of outputs, along which they may have scales and zero points;
    ``transposed`` matrices of weights are transposed first.
    """
    left, right = _dequantized(c, 0), _dequantized(c, 1)
    if left is None or left.known is not None or right is None or right.known is None:
        return None
    narrow = dtype_of(left.value) in _BYTES and str(right.known.dtype) in _BYTES
    if not narrow or right.known.nbytes >= LARGE_WEIGHT_BYTES:
        return None
    rank = right.known.ndim
    along = right.axis % rank == (1 - axis if transposed else axis) % rank
    if left.scale.size > 1 or (right.scale.size > 1 and not along):
        return None
    x = R.astype(left.value, "int32")
    if left.zero.any():
        x = x - constant(left.zero.reshape(()))
    # The bytes are transposed before they are widened to int32.
    known = np.ascontiguousarray(right.known.T) if transposed else right.known
    weight = np.subtract(known, right.zero.reshape(shape_along(axis, rank)), dtype=np.int32)
    scale = left.scale.reshape(-1) * right.scale.reshape(-1)
    return IntegerProduct(x, weight, scale.astype(np.float32))


@dataclass(frozen=True)
class _Dequantized:
    """A dequantized tensor, ``(value - zero) * scale``."""

    value: relax.Expr
    #: The value if it is a constant.
    known: np.ndarray | None
    #: One number, or a vector along an axis, like the zero point in int32.
    scale: np.ndarray
    zero: np.ndarray
    axis: int


def _dequantized(c: NodeContext, index: int) -> _Dequantized | None:
    """Return the tensor that an input was dequantized from, if its parameters are constant."""
    node = c.graph.dequantized.get(c.node.input[index])
    if node is None or c.dtype(index) != "float32":
        return None
    attributes, constants = node_attributes(node), c.graph.constants
    name, *parameters = [n for n in node.input if n]
    scale, *zeros = [constants.get(n) for n in parameters]
    if scale is None or attributes.get("block_size", 0) or any(z is None for z in zeros):
        return None
    zero = zeros[0] if zeros else np.zeros(scale.shape, np.uint8)
    assert zero is not None
    axis = attributes.get("axis", 1)
    return _Dequantized(
        c.expressions[name], constants.get(name), scale, zero.astype(np.int32), axis
    )


# Requantization ------------------------------------------------------------------------


@dataclass(frozen=True)
class _Target:
    """Scale, zero point and dtype of a result."""

    scale: np.float32
    zero: int
    dtype: str


#: A value in steps of the result's scale, and the zero point that it already includes.
_Requantized = tuple[relax.Expr, int]


@dataclass(frozen=True)
class _Quantized:
    """A tensor that was dequantized with one scale and zero point."""

    value: relax.Expr
    scale: np.float32
    zero: int

    def integers(self) -> relax.Expr:
        """Return the integers in fp32."""
        return R.astype(self.value, "float32")

    def difference(self) -> relax.Expr:
        """Return the integers minus their zero point, in fp32."""
        return self.integers() - constant(np.float32(self.zero)) if self.zero else self.integers()


def _same_steps(c: NodeContext, x: relax.Expr, target: _Target) -> relax.Expr | None:
    """Return the integers that ``x`` was dequantized from, if it is quantized in the same steps.

    Quantizers emit such pairs around operators that only move elements.  Multiplying by a scale and
    dividing by it is exact to 2^-23 of the integer, which has at most 17 bits, unless it overflows.
    """
    found = _quantized(c, x)
    if found is None or dtype_of(found.value) != target.dtype or found.zero != target.zero:
        return None
    safe = 2.0**-100 < abs(float(target.scale)) < 2.0**100
    return found.value if safe and found.scale == target.scale else None


def _requantized(c: NodeContext, x: relax.Expr, target: _Target) -> _Requantized | None:
    """Return ``x`` in steps of a scale, if a known operator computes it from quantized operands."""
    if dtype_of(x) != "float32" or target.dtype not in _BYTES:
        return None
    found = _requantized_product(c, x, target.scale)
    if found is not None:
        return found, 0
    value = c.definition(x)
    rule = _REQUANTIZED.get(op_name(value) or "")
    if rule is None:
        return None
    operands = [operand for a in value.args if (operand := _quantized(c, a)) is not None]
    return rule(value, operands, target) if len(operands) == len(value.args) else None


def _requantized_product(c: NodeContext, x: relax.Expr, scale: np.float32) -> relax.Expr | None:
    """Return an int32 sum ``x`` in steps of ``scale``; ``None`` for other forms."""
    activations, bias, value = [], None, c.definition(x)
    while op_name(value) in ("relax.nn.relu", "relax.clip"):
        activations.append(value)
        value = c.definition(value.args[0])
    if op_name(value) == "relax.add":
        bias = constant_array(value.args[1])
        if bias is None:
            return None
        value = c.definition(value.args[0])
    if op_name(value) != "relax.multiply":
        return None
    own = constant_array(value.args[1])
    total = c.definition(value.args[0])
    if own is None or op_name(total) != "relax.astype" or dtype_of(total.args[0]) != "int32":
        return None
    sums = total.args[0]
    if bias is not None:
        steps = _steps(bias, own)
        if steps is None:
            return None
        sums = sums + constant(steps)
    ratio = constant((own / scale).astype(np.float32))
    result = rounding.product(R.astype(sums, "float32"), ratio)
    for activation in reversed(activations):
        if op_name(activation) == "relax.nn.relu":
            result = R.nn.relu(result)
        else:
            limits = (float(limit.value / scale) for limit in activation.args[1:])
            result = R.clip(result, *(tirx.const(limit, "float32") for limit in limits))
    return result


def _steps(bias: np.ndarray, scale: np.ndarray) -> np.ndarray | None:
    """Return a bias in int32, if it is an integer number of steps."""
    with np.errstate(all="ignore"):
        steps = np.rint(bias.astype(np.float64) / scale)
        if not (np.abs(steps) < 2**31).all():
            return None
        whole = steps.astype(np.int32)
        same = whole.astype(np.float32) * scale == bias
    return whole if same.all() else None


def _sum(_call: relax.Call, operands: Sequence[_Quantized], target: _Target) -> _Requantized:
    """Add the scaled integers; the contribution of their zero points is constant."""
    a, b = operands
    left, right = a.scale / target.scale, b.scale / target.scale
    # The constant is rounded as fused multiply-adds would round it.
    points = np.float32(np.float64(left) * a.zero + np.float64(np.float32(right * b.zero)))
    rest = constant(np.float32(target.zero) - points)
    value = rounding.multiply_add(b.integers(), constant(right), rest)
    return rounding.multiply_add(a.integers(), constant(left), value), target.zero


def _times(_call: relax.Call, operands: Sequence[_Quantized], target: _Target) -> _Requantized:
    a, b = operands
    ratio = constant(np.float32(np.float32(a.scale * b.scale) / target.scale))
    value = rounding.product(a.difference() * b.difference(), ratio)
    # The value is clamped first, so that its sum with the zero point is known to be small.
    value = _limited(value, target.dtype, target.zero)
    return value + constant(np.float32(target.zero)), target.zero


def _mean(call: relax.Call, operands: Sequence[_Quantized], target: _Target) -> _Requantized | None:
    (x,) = operands
    axes = [int(axis) for axis in call.attrs.axis]
    count = prod(shape_of(x.value)[axis] for axis in axes)
    if count > _LARGEST_SUM:
        return None
    total = R.sum(x.difference(), axes, bool(call.attrs.keepdims))
    ratio = np.float32(x.scale / np.float32(target.scale * np.float32(count)))
    return rounding.product(total, constant(ratio)), 0


_Rule = Callable[[relax.Call, Sequence[_Quantized], _Target], "_Requantized | None"]
_REQUANTIZED: dict[str, _Rule] = {
    "relax.add": _sum, "relax.multiply": _times, "relax.mean": _mean,
}  # fmt: skip


def _quantized(c: NodeContext, expr: relax.Expr) -> _Quantized | None:
    """Return the quantized tensor that an expression was dequantized from."""
    value = c.definition(expr)
    if op_name(value) != "relax.tvmflow.product":
        return None
    scale = constant_array(value.args[1])
    found = narrow_source(value.args[0], c.definition)
    if scale is None or scale.size != 1 or found is None:
        return None
    return _Quantized(found[0], np.float32(scale.reshape(())), found[1])
