"""Convolutions and matrix products of 8-bit numbers, with sums in int32.

Zero points are subtracted from the operands, constants among them now.  The layout pass finds
the 8-bit tensors behind the differences again (:mod:`tvmflow.graph.layout.rules.quantized`).
"""

from __future__ import annotations

import numpy as np
from tvm import relax

from ...codegen import rounding
from .context import NodeContext, Refusal, constant
from .convolution import convolve
from .quantization import rounded
from .registry import converts

R = relax.op


def difference(c: NodeContext, index: int, zero: int, axis: int | None) -> relax.Expr:
    """An operand without its zero point, in int32.

    Parameters
    ----------
    index, zero
        Numbers of the inputs.
    axis
        Of the operand, along which a vector of zero points lies.
    """
    shape, count = c.shape(index), int(np.prod(c.shape(zero))) if c.has(zero) else 0
    form = shaped(count, shape, axis)
    values, zeros = c.known(index), c.known(zero) if count else None
    if values is not None and (zeros is not None or not count):
        whole = values.astype(np.int32)
        return constant(whole if zeros is None else whole - zeros.astype(np.int32).reshape(form))
    value = c.emit(R.astype(c.input(index), "int32"))
    if not count:
        return value
    if zeros is not None:
        point: relax.Expr = constant(zeros.astype(np.int32).reshape(form))
    else:
        point = c.emit(R.reshape(c.emit(R.astype(c.input(zero), "int32")), form))
    return c.emit(R.subtract(value, point))


def shaped(count: int, shape: tuple[int, ...], axis: int | None) -> tuple[int, ...]:
    """The shape in which scales or zero points broadcast along an axis of an operand."""
    if count <= 1:
        return ()
    if axis is None or count != shape[axis]:
        raise Refusal(f"it has {count} zero points or scales for an operand of {list(shape)}")
    return tuple(count if a == axis % len(shape) else 1 for a in range(len(shape)))


@converts("ConvInteger")
def conv_integer(c: NodeContext) -> relax.Expr:
    """Convolution without zero points, in int32."""
    return convolve(c, difference(c, 0, 2, None), difference(c, 1, 3, 0), c.shape(1))


@converts("QLinearConv")
def qlinear_conv(c: NodeContext) -> relax.Expr:
    """Convolution of quantized numbers plus a bias, quantized again."""
    weight = c.shape(3)
    total = c.emit(convolve(c, difference(c, 0, 2, None), difference(c, 3, 5, 0), weight))
    result = c.result.shape
    if c.has(8):
        bias = c.array(8, "biases").astype(np.int32)
        total = c.emit(R.add(total, constant(bias.reshape(shaped(bias.size, result, 1)))))
    return requantize(c, total, (1, 4, 6), 7, 1)


@converts("MatMulInteger")
def matmul_integer(c: NodeContext) -> relax.Expr:
    """Product of 8-bit matrices without their zero points, in int32."""
    return R.matmul(difference(c, 0, 2, -2), difference(c, 1, 3, -1))


@converts("QLinearMatMul")
def qlinear_matmul(c: NodeContext) -> relax.Expr:
    """Product of quantized matrices, quantized again."""
    product = c.emit(R.matmul(difference(c, 0, 2, -2), difference(c, 3, 5, -1)))
    return requantize(c, product, (1, 4, 6), 7, -1)


def requantize(
    c: NodeContext, total: relax.Expr, scales: tuple[int, int, int], zero: int, axis: int
) -> relax.Expr:
    """round(total · left · right / result) + zero point, limited to the result's type.

    ``scales`` are the numbers of those inputs; the right one may be a vector along ``axis``.
    """
    left, right, result = (c.array(i, "scales").astype(np.float32) for i in scales)
    shape, points = c.result.shape, c.array(zero, "zero points")
    if left.size > 1 or result.size > 1:
        raise Refusal("only the second operand may have a scale for each column")
    ratio = left.reshape(()) * right / result.reshape(())
    scale = constant(ratio.astype(np.float32).reshape(shaped(ratio.size, shape, axis)))
    value = c.emit(rounding.product(c.emit(R.astype(total, "float32")), scale))
    return rounded(c, value, int(points.reshape(())), c.result.dtype)
