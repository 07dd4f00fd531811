"""Normalizations and softmax."""

from __future__ import annotations

from math import prod

import numpy as np
import onnx
from tvm import relax

from ...ir.tensors import TensorType
from ..converter import (
    NodeContext,
    Refusal,
    constant,
    converts,
    dtype_of,
    shape_along,
    shape_of,
)
from ..graph import Graph
from ..rewrite import scale_and_shift
from .reduction import first_extreme

R = relax.op


@converts("BatchNormalization")
def batch_normalization(c: NodeContext) -> relax.Expr:
    """Scale and shift every channel by given statistics."""
    if c.attribute("training_mode", 0) or any(map(c.uses_result, range(1, 5))):
        raise Refusal("training mode is not supported")
    if c.attribute("spatial", 1) != 1:
        raise Refusal("statistics for every element (spatial=0) are not supported")
    kind, epsilon = _statistics_dtype(c), c.attribute("epsilon", 1e-5)
    x, rank = c.cast(c.input(), kind), len(c.shape())
    known = [c.known(index) for index in range(1, 5)]
    parameters = [array for array in known if array is not None]
    if len(parameters) == 4:
        scale, shift = (
            c.constant(array.reshape(shape_along(1, rank)), kind)
            for array in scale_and_shift(parameters, epsilon)
        )
        centred = x
    else:
        gamma, shift, mean, variance = (
            c.cast(c.emit(R.reshape(c.input(index), _channels(c))), kind) for index in range(1, 5)
        )
        deviation = c.emit(R.sqrt(c.emit(R.add(variance, c.constant(epsilon, kind)))))
        scale = c.emit(R.divide(gamma, deviation))
        centred = c.emit(R.subtract(x, mean))
    result = R.add(c.emit(R.multiply(centred, scale)), shift)
    return result if kind == c.dtype() else R.astype(c.emit(result), c.dtype())


def _channels(c: NodeContext) -> tuple[int, ...]:
    """Return the shape in which a vector lies along the channels."""
    return (1, c.shape()[1]) + (1,) * (len(c.shape()) - 2)


def _normalize(
    c: NodeContext, x: relax.Expr, axes: list[int], epsilon: float
) -> tuple[relax.Expr, relax.Expr, relax.Expr]:
    """Return (x - mean) / sqrt(variance + epsilon), the mean and the inverse deviation.

    This is for those who want all three, and for what :func:`_normalized` does not take.
    """
    mean = c.emit(R.mean(x, axes, keepdims=True))
    centred = c.emit(R.subtract(x, mean))
    squares = c.emit(R.multiply(centred, centred))
    variance = c.emit(R.mean(squares, axes, keepdims=True))
    kind = dtype_of(x)
    deviation = c.emit(R.sqrt(c.emit(R.add(variance, c.constant(epsilon, kind)))))
    inverse = c.emit(R.divide(c.constant(1, kind), deviation))
    return c.emit(R.multiply(centred, inverse)), mean, inverse


def _normalized(
    c: NodeContext, x: relax.Expr, axes: list[int], epsilon: float, centred: bool = True
) -> relax.Expr:
    """Return (x - mean) / sqrt(variance + epsilon), or x / sqrt(mean square + epsilon).

    One operator with a schedule of its own; scale and bias, which it could take, are left to
    the elementwise operators behind it.
    """
    # TVM cannot legalize a norm without a mean over all axes.
    if dtype_of(x) != "float32" or (not centred and len(axes) == len(shape_of(x))):
        if centred:
            return _normalize(c, x, axes, epsilon)[0]
        square = c.emit(R.mean(c.emit(R.multiply(x, x)), axes, keepdims=True))
        shifted = c.emit(R.add(square, c.constant(epsilon, dtype_of(x))))
        return c.emit(R.divide(x, c.emit(R.sqrt(shifted))))
    row = [shape_of(x)[axis] for axis in axes]
    ones = constant(np.ones(row, np.float32))
    if not centred:
        return c.emit(R.nn.rms_norm(x, ones, axes, epsilon))
    return c.emit(R.nn.layer_norm(x, ones, constant(np.zeros(row, np.float32)), axes, epsilon))


def _statistics_dtype(c: NodeContext) -> str:
    """Return the dtype to compute statistics in: half precision is too coarse for them."""
    return "float32" if c.dtype() == "float16" else c.dtype()


def _affine(c: NodeContext, x: relax.Expr, shape: tuple[int, ...]) -> relax.Expr:
    """Multiply by the second input and add the third, each reshaped to broadcast."""
    result = R.multiply(x, c.emit(R.reshape(c.input(1), shape)))
    return R.add(c.emit(result), c.emit(R.reshape(c.input(2), shape)))


def _type_of_input(node: onnx.NodeProto, graph: Graph) -> TensorType:
    """Return the type of the first input: ONNX's shape inference knows only the rank."""
    return graph.type_of(node.input[0])


@converts("InstanceNormalization")
def instance_normalization(c: NodeContext) -> relax.Expr:
    """Normalize every channel of every image."""
    rank = len(c.shape())
    x = c.cast(c.input(), _statistics_dtype(c))
    normal = _normalized(c, x, list(range(2, rank)), c.attribute("epsilon", 1e-5))
    return _affine(c, c.cast(normal, c.dtype()), _channels(c))


@converts("GroupNormalization", result_type=_type_of_input)
def group_normalization(c: NodeContext) -> relax.Expr:
    """Normalize groups of channels (ONNX has withdrawn the operator's form before opset 21)."""
    shape, groups = c.shape(), c.required("num_groups")
    x = c.cast(c.input(), _statistics_dtype(c))
    members = (groups, shape[1] // groups)
    x = c.emit(R.reshape(x, (shape[0], *members, *shape[2:])))
    axes = list(range(2, len(shape) + 1))
    normal = c.cast(_normalized(c, x, axes, c.attribute("epsilon", 1e-5)), c.dtype())
    result = _affine(c, normal, (1, *members) + (1,) * (len(shape) - 2))
    return R.reshape(c.emit(result), shape)


@converts("LayerNormalization")
def layer_normalization(c: NodeContext) -> list[relax.Expr | None]:
    """Normalize the last axes; also returns the mean and the inverse deviation."""
    x, axes = c.cast(c.input(), _statistics_dtype(c)), list(range(c.axis(-1), len(c.shape())))
    epsilon = c.attribute("epsilon", 1e-5)
    statistics: list[relax.Expr | None] = [None, None]
    if c.uses_result(1) or c.uses_result(2):
        normal, *statistics = _normalize(c, x, axes, epsilon)
    else:
        normal = _normalized(c, x, axes, epsilon)
    result = R.multiply(c.cast(normal, c.dtype()), c.input(1))
    if c.has(2):
        result = R.add(c.emit(result), c.input(2))
    return [result, *statistics]


@converts("RMSNormalization")
def rms_normalization(c: NodeContext) -> relax.Expr:
    """Divide by the root of the mean square of the last axes."""
    x, axes = c.cast(c.input(), _statistics_dtype(c)), list(range(c.axis(-1), len(c.shape())))
    normal = _normalized(c, x, axes, c.attribute("epsilon", 1e-5), centred=False)
    return R.multiply(c.cast(normal, c.dtype()), c.input(1))


@converts("MeanVarianceNormalization", result_type=_type_of_input)
def mean_variance_normalization(c: NodeContext) -> relax.Expr:
    """(x - mean) / (deviation + 1e-9), as the operator's definition has it."""
    axes = list(c.attribute("axes") or (0, 2, 3))
    x = c.input()
    centred = c.emit(R.subtract(x, c.emit(R.mean(x, axes, keepdims=True))))
    variance = c.emit(R.mean(c.emit(R.multiply(centred, centred)), axes, keepdims=True))
    return R.divide(centred, c.emit(R.add(c.emit(R.sqrt(variance)), c.constant(1e-9))))


@converts("LpNormalization")
def lp_normalization(c: NodeContext) -> relax.Expr:
    """Divide by the 1- or 2-norm along an axis; zero where the norm is."""
    axis, p = c.axis(-1), c.attribute("p", 2)
    x = c.input()
    if p == 1:
        norm = c.emit(R.sum(c.emit(R.abs(x)), [axis], keepdims=True))
    elif p == 2:
        norm = c.emit(R.sqrt(c.emit(R.sum(c.emit(R.multiply(x, x)), [axis], keepdims=True))))
    else:
        raise Refusal(f"p is {p}; 1 and 2 are supported")
    quotient = c.emit(R.divide(x, norm))
    return R.where(c.emit(R.equal(norm, c.constant(0))), c.constant(0), quotient)


@converts("LRN")
def local_response_normalization(c: NodeContext) -> relax.Expr:
    """x / (bias + alpha / size · sum of squares over near channels) ^ beta."""
    x, size, channels = c.input(), c.required("size"), c.shape()[1]
    rank = len(c.shape())
    squares = c.emit(R.multiply(x, x))
    # Beyond the first and last channel there is nothing to sum.
    before, after = min((size - 1) // 2, channels - 1), min(size // 2, channels - 1)
    padded = c.emit(R.nn.pad(squares, [0, 0, before, after] + [0, 0] * (rank - 2)))
    total = c.emit(R.strided_slice(padded, [1], [0], [channels]))
    for shift in range(1, before + after + 1):
        near = c.emit(R.strided_slice(padded, [1], [shift], [shift + channels]))
        total = c.emit(R.add(total, near))
    scaled = c.emit(R.multiply(total, c.constant(c.attribute("alpha", 1e-4) / size)))
    base = c.emit(R.add(scaled, c.constant(c.attribute("bias", 1.0))))
    return R.divide(x, c.emit(R.power(base, c.constant(c.attribute("beta", 0.75)))))


@converts("Softmax", "LogSoftmax", "Hardmax")
def softmax(c: NodeContext) -> relax.Expr:
    """Along one axis since opset 13; before, over all axes from the given one on."""
    x, shape, legacy = c.input(), c.shape(), c.opset < 13
    axis = c.axis(1 if legacy else -1)
    flattened = legacy and prod(shape[axis + 1 :]) != 1
    if flattened:
        x, axis = c.emit(R.reshape(x, (prod(shape[:axis]), prod(shape[axis:])))), 1
    if c.op_type == "Hardmax":
        result = _hardmax(c, x, axis)
    else:
        operator = R.nn.softmax if c.op_type == "Softmax" else R.nn.log_softmax
        result = operator(x, axis)
    return R.reshape(c.emit(result), shape) if flattened else result


def _hardmax(c: NodeContext, x: relax.Expr, axis: int) -> relax.Expr:
    """1 at the first maximum along an axis, else 0; all are 0 where the first element is NaN."""
    shape = shape_of(x)
    first = c.emit(first_extreme(c, x, axis, keepdims=True, largest=True))
    positions = np.arange(shape[axis], dtype=np.int64).reshape(shape_along(axis, len(shape)))
    found = c.emit(R.equal(constant(positions), first))
    one = c.constant(1)
    if c.is_float():
        number = c.emit(R.greater_equal(x, c.constant(-np.inf)))
        one = c.emit(R.where(number, one, c.constant(0)))
    return R.where(found, one, c.constant(0))
