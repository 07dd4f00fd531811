"""Conversion between real and 8- or 16-bit numbers."""

from __future__ import annotations

import numpy as np
from tvm import relax

from ...codegen import rounding
from .context import NodeContext, Refusal, constant, dtype_of
from .registry import converts
from .requantized import requantized
from .shaping import normalized_axis

R = relax.op

_QUANTIZED = ("int8", "uint8", "int16", "uint16")


@converts("QuantizeLinear")
def quantize(c: NodeContext) -> relax.Expr:
    """round(x / scale) + zero point, to even, limited to the type's range."""
    target = c.result.dtype
    _check(c, target)
    if c.attribute("precision", 0) not in (0, 1):
        raise Refusal("only division in float32 is supported")
    scale, zero = _parameters(c, "float32")
    x = c.input() if c.dtype() == "float32" else c.emit(R.astype(c.input(), "float32"))
    points = c.known(2) if c.has(2) else np.zeros(1, np.int32)
    if points is not None and points.size == 1:
        point, values = int(points.reshape(())), c.known(1)
        if values is not None and values.size == 1:
            found = requantized(c, x, np.float32(values.reshape(())), point, target)
            if found is not None:
                return rounded(c, found.value, point, target, found.zero)
        return rounded(c, c.emit(rounding.quotient(x, scale)), point, target)
    value = c.emit(R.round(c.emit(rounding.quotient(x, scale))))
    if zero is not None:
        value = c.emit(R.add(value, zero))
    return narrowed(c, limit(c, value, target), target)


def rounded(
    c: NodeContext, value: relax.Expr, zero: int, target: str, added: int = 0
) -> relax.Expr:
    """round(value) + zero point, to even, limited to an integer type's range.

    Limited first, which is the same and makes rounding cheap (:mod:`tvmflow.codegen.rounding`).
    ``added`` is what the value has of the zero point already.
    """
    limits, zero = np.iinfo(target), zero - added
    value = c.emit(R.clip(value, limits.min - zero, limits.max - zero))
    value = c.emit(R.astype(c.emit(R.round(value)), "int32"))
    if zero:
        value = c.emit(R.add(value, constant(np.int32(zero))))
    return R.astype(value, target)


def narrowed(c: NodeContext, value: relax.Expr, target: str) -> relax.Expr:
    """Whole numbers within the limits of an integer type, in that type.

    Vectors of floats become 32-bit integers by one instruction, and these 8-bit ones; the direct
    way is taken number by number.
    """
    return R.astype(c.emit(R.astype(value, "int32")), target)


def limit(c: NodeContext, value: relax.Expr, target: str) -> relax.Expr:
    """The value within the limits of an integer type."""
    limits = np.iinfo(target)
    return c.emit(R.clip(value, limits.min, limits.max))


@converts("DequantizeLinear")
def dequantize(c: NodeContext) -> relax.Expr:
    """(x - zero point) · scale."""
    if c.dtype() not in (*_QUANTIZED, "int32"):
        raise Refusal(f"{c.dtype()} is not supported")
    _check(c, "int8")
    if c.dtype() == "int32":
        # The difference of 32-bit numbers does not fit float32.
        scale, zero = _parameters(c, "int32")
        value = c.input() if zero is None else c.emit(R.subtract(c.input(), zero))
        value = c.emit(R.astype(value, "float32"))
    else:
        scale, zero = _parameters(c, "float32")
        value = c.emit(R.astype(c.input(), "float32"))
        value = value if zero is None else c.emit(R.subtract(value, zero))
    result = rounding.product(value, scale)
    if c.result.dtype != "float32":
        result = R.astype(c.emit(result), c.result.dtype)
    return result


def _check(c: NodeContext, quantized: str) -> None:
    if quantized not in _QUANTIZED:
        raise Refusal(f"{quantized} is not supported")
    if c.attribute("block_size", 0):
        raise Refusal("one scale for each block is not supported")


def _parameters(c: NodeContext, zero_dtype: str) -> tuple[relax.Expr, relax.Expr | None]:
    """Return scale (in float32) and zero point, shaped to broadcast along their axis."""
    rank, count = len(c.shape()), int(np.prod(c.shape(1)))
    shape: tuple[int, ...] = ()
    if c.shape(1) != () and rank > 0:
        shape = (1,) * rank
        if count != 1 or c.shape(1) != (1,) or rank == 1:
            axis = normalized_axis(c.attribute("axis", 1), rank) if rank > 1 else 0
            if count != c.shape()[axis] and count != 1:
                raise Refusal(f"it has {count} scales for an axis of {c.shape()[axis]}")
            shape = tuple(count if a == axis else 1 for a in range(rank))

    def shaped(index: int, kind: str) -> relax.Expr:
        values = c.known(index)
        if values is not None:
            return constant(values.reshape(shape).astype(kind))
        value = c.emit(R.reshape(c.input(index), shape))
        return value if dtype_of(value) == kind else c.emit(R.astype(value, kind))

    return shaped(1, "float32"), shaped(2, zero_dtype) if c.has(2) else None


@converts("DynamicQuantizeLinear")
def dynamic_quantize(c: NodeContext) -> list[relax.Expr]:
    """Quantize to uint8 with scale and zero point from the extremes of the values.

    As in ONNX Runtime the scale of nothing but zeros is one; by ONNX's definition it is zero, and
    everything a quotient of two zeros.
    """
    x = c.input()
    zero, one = c.constant(0), c.constant(1)
    highest = c.emit(R.maximum(c.emit(R.max(x)), zero))
    lowest = c.emit(R.minimum(c.emit(R.min(x)), zero))
    span = c.emit(R.subtract(highest, lowest))
    step = c.emit(rounding.quotient(span, c.constant(255)))
    scale = c.emit(R.where(c.emit(R.equal(span, zero)), one, step))
    point = c.emit(R.round(c.emit(rounding.quotient(c.emit(R.negative(lowest)), scale))))
    point = limit(c, point, "uint8")
    value = c.emit(R.add(c.emit(R.round(c.emit(rounding.quotient(x, scale)))), point))
    return [R.astype(limit(c, value, "uint8"), "uint8"), scale, R.astype(point, "uint8")]
