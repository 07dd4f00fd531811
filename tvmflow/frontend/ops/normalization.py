"""Converters of normalizations and softmax."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce
from math import prod

import numpy as np
import onnx
from tvm import relax
from tvm.relax import op as R

from ...ir.norms import normalized
from ...ir.rewriter import constant, shape_of
from ...ir.tensors import TensorType
from ..converter import NodeContext, Refusal, converts, dtype_of, shape_along
from ..graph import Graph
from ..rewrite import scale_and_shift
from .elementwise import constant_power
from .reduction import first_extreme


@converts("BatchNormalization")
def batch_normalization(c: NodeContext) -> relax.Expr | list[relax.Expr]:
    """Normalize every channel by given statistics, then scale and shift it."""
    if c.attribute("training_mode", 0):
        return _training_normalization(c)
    if any(map(c.uses_result, range(1, 5))):
        raise Refusal("training mode is not supported before operator set 14")
    if c.attribute("spatial", 1) != 1:
        raise Refusal("statistics for every element (spatial=0) are not supported")
    kind, x = _statistics_dtype(c), _in_statistics_dtype(c)
    known = [c.known(index) for index in range(1, 5)]
    parameters = [array for array in known if array is not None]
    if len(parameters) == 4:
        scale, shift = (
            c.constant(array.reshape(shape_along(1, len(c.shape()))), kind)
            for array in scale_and_shift(parameters, c.attribute("epsilon", 1e-5))
        )
        result = x * scale + shift
    else:
        gamma, shift, mean, variance = (
            c.cast(R.reshape(c.input(index), shape_along(1, len(c.shape()))), kind)
            for index in range(1, 5)
        )
        result = (x - mean) * (gamma / R.sqrt(variance + _epsilon(c))) + shift
    return result if kind == c.dtype() else R.astype(result, c.dtype())


def _training_normalization(c: NodeContext) -> list[relax.Expr]:
    """Normalize every channel by its own statistics, and update the running ones."""
    x, kind, rank = _in_statistics_dtype(c), _statistics_dtype(c), len(c.shape())
    normal, mean, _ = _normalize(c, x, [axis for axis in range(rank) if axis != 1])
    centred = x - mean
    variance = R.mean(centred * centred, [axis for axis in range(rank) if axis != 1])
    momentum = c.attribute("momentum", 0.9)
    running = [
        c.cast(old * c.constant(momentum, kind) + new * c.constant(1 - momentum, kind), dtype)
        for old, new, dtype in (
            (c.cast(c.input(3), kind), R.reshape(c.emit(mean), (-1,)), c.dtype(3)),
            (c.cast(c.input(4), kind), variance, c.dtype(4)),
        )
    ]
    return [c.cast(_affine(c, normal, shape_along(1, rank)), c.dtype()), *running]


def _statistics_dtype(c: NodeContext) -> str:
    """Return the dtype for statistics, for which half precision is too coarse."""
    return "float32" if c.dtype() == "float16" else c.dtype()


def _in_statistics_dtype(c: NodeContext) -> relax.Expr:
    return c.cast(c.input(), _statistics_dtype(c))


def _epsilon(c: NodeContext) -> relax.Expr:
    return c.constant(c.attribute("epsilon", 1e-5), _statistics_dtype(c))


def _normalize(c: NodeContext, x: relax.Expr, axes: list[int]) -> list[relax.Expr]:
    """Return (x - mean) / sqrt(variance + epsilon), the mean and the inverse deviation.

    This is for callers that need all three, and forms that :func:`_normalized` does not support.
    """
    mean = R.mean(x, axes, keepdims=True)
    centred = x - mean
    variance = R.mean(centred * centred, axes, keepdims=True)
    inverse = c.constant(1, _statistics_dtype(c)) / R.sqrt(variance + _epsilon(c))
    return [centred * inverse, mean, inverse]


def _normalized(c: NodeContext, x: relax.Expr, axes: list[int], centred: bool = True) -> relax.Expr:
    """Return (x - mean) / sqrt(variance + epsilon), or x / sqrt(mean square + epsilon).

    This becomes one operator with its own schedule; scale and bias, which it could include, are
    left to the elementwise operators after it.  The result has the first input's dtype.
    """
    x, epsilon = c.emit(x), c.attribute("epsilon", 1e-5)
    result = None
    if dtype_of(x) == "float32":
        result = normalized(x, axes, epsilon, centred=centred)
    if result is None:
        root = R.sqrt(R.mean(x * x, axes, keepdims=True) + _epsilon(c))
        result = _normalize(c, x, axes)[0] if centred else x / root
    return c.cast(result, c.dtype())


def _affine(c: NodeContext, x: relax.Expr, shape: Sequence[int]) -> relax.Expr:
    """Multiply by the second input and add the third, each reshaped to broadcast."""
    return x * R.reshape(c.input(1), shape) + R.reshape(c.input(2), shape)


def _type_of_input(node: onnx.NodeProto, graph: Graph) -> TensorType:
    """Return the type of the first input, of which ONNX's shape inference infers only the rank."""
    return graph.type_of(node.input[0])


@converts("InstanceNormalization")
def instance_normalization(c: NodeContext) -> relax.Expr:
    """Normalize every channel of every image."""
    normal = _normalized(c, _in_statistics_dtype(c), list(range(2, len(c.shape()))))
    return _affine(c, normal, shape_along(1, len(c.shape())))


@converts("GroupNormalization", result_type=_type_of_input)
def group_normalization(c: NodeContext) -> relax.Expr:
    """Normalize groups of channels (ONNX has withdrawn the form before operator set 21)."""
    shape, groups = c.shape(), c.required("num_groups")
    members = (groups, shape[1] // groups)
    x = R.reshape(_in_statistics_dtype(c), (shape[0], *members, *shape[2:]))
    normal = _normalized(c, x, list(range(2, len(shape) + 1)))
    return R.reshape(_affine(c, normal, (1, *members) + (1,) * (len(shape) - 2)), shape)


@converts("LayerNormalization")
def layer_normalization(c: NodeContext) -> list[relax.Expr | None]:
    """Normalize the last axes; also return the mean and the inverse deviation."""
    x, axes = _in_statistics_dtype(c), list(range(c.axis(-1), len(c.shape())))
    statistics: list[relax.Expr | None] = [None, None]
    if c.uses_result(1) or c.uses_result(2):
        normal, *statistics = _normalize(c, x, axes)
        normal = c.cast(normal, c.dtype())
    else:
        normal = _normalized(c, x, axes)
    result = normal * c.input(1)
    return [result + c.input(2) if c.has(2) else result, *statistics]


@converts("RMSNormalization")
def rms_normalization(c: NodeContext) -> relax.Expr:
    """Divide by the root of the mean square of the last axes."""
    axes = list(range(c.axis(-1), len(c.shape())))
    return _normalized(c, _in_statistics_dtype(c), axes, centred=False) * c.input(1)


@converts("MeanVarianceNormalization", result_type=_type_of_input)
def mean_variance_normalization(c: NodeContext) -> relax.Expr:
    """Return (x - mean) / (deviation + 1e-9), as ONNX defines it."""
    axes, x = list(c.attribute("axes") or (0, 2, 3)), c.input()
    centred = x - R.mean(x, axes, keepdims=True)
    variance = R.mean(centred * centred, axes, keepdims=True)
    return centred / (R.sqrt(variance) + c.constant(1e-9))


@converts("LpNormalization")
def lp_normalization(c: NodeContext) -> relax.Expr:
    """Divide by the 1- or 2-norm along an axis; the result is zero if the norm is."""
    x, axis, p = c.input(), c.axis(-1), c.attribute("p", 2)
    if p not in (1, 2):
        raise Refusal(f"p is {p}; 1 and 2 are supported")
    total = R.sum(R.abs(x) if p == 1 else x * x, [axis], keepdims=True)
    norm = total if p == 1 else R.sqrt(total)
    return R.where(R.equal(norm, c.constant(0)), c.constant(0), x / norm)


@converts("LRN")
def local_response_normalization(c: NodeContext) -> relax.Expr:
    """Return x / (bias + alpha / size · sum of squares over near channels) ^ beta."""
    x, size, channels = c.input(), c.required("size"), c.shape()[1]
    # Windows end at the first and the last channel.
    before, after = min((size - 1) // 2, channels - 1), min(size // 2, channels - 1)
    padded = R.nn.pad(x * x, [0, 0, before, after] + [0, 0] * (len(c.shape()) - 2))
    near = [
        R.strided_slice(padded, [1], [shift], [shift + channels])
        for shift in range(before + after + 1)
    ]
    scaled = reduce(R.add, near) * c.constant(c.attribute("alpha", 1e-4) / size)
    base = c.emit(scaled + c.constant(c.attribute("bias", 1.0)))
    return x / constant_power(c, base, c.attribute("beta", 0.75))


@converts("Softmax", "LogSoftmax", "Hardmax")
def softmax(c: NodeContext) -> relax.Expr:
    """Normalize along one axis, or before opset 13 over all axes starting at the given one."""
    x, shape, legacy = c.input(), c.shape(), c.opset < 13
    axis = c.axis(1 if legacy else -1)
    flattened = legacy and prod(shape[axis + 1 :]) != 1
    if flattened:
        x, axis = c.emit(R.reshape(x, (prod(shape[:axis]), prod(shape[axis:])))), 1
    operators = {"Softmax": R.nn.softmax, "LogSoftmax": R.nn.log_softmax}
    result = operators.get(c.op_type, partial(_hardmax, c))(x, axis)
    return R.reshape(result, shape) if flattened else result


def _hardmax(c: NodeContext, x: relax.Expr, axis: int) -> relax.Expr:
    """Return 1 at the first maximum along an axis, else 0; all 0 if the first element is NaN."""
    shape, one = shape_of(x), c.constant(1)
    first = first_extreme(x, axis, keepdims=True, largest=True)
    positions = np.arange(shape[axis], dtype=np.int64).reshape(shape_along(axis, len(shape)))
    if c.is_float():
        one = R.where(x >= c.constant(-np.inf), one, c.constant(0))
    return R.where(R.equal(constant(positions), first), one, c.constant(0))
