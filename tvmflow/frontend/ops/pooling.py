"""Converters of pools over windows and over the whole image."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod

import numpy as np
import onnx
from tvm import relax, te, tirx
from tvm.relax import op as R

from ...ir.extremes import lowest, reducer
from ...ir.rewriter import constant
from ...ir.tensors import TensorType
from ..converter import InvalidNode, NodeContext, Refusal, converts
from ..graph import Graph, node_attributes
from .convolution import Attributes, Extents, Windows, read_windows, windowed_type
from .elementwise import constant_power
from .reduction import wide_reduction

_Operator = Callable[..., relax.Expr]
_MAX = {1: R.nn.max_pool1d, 2: R.nn.max_pool2d, 3: R.nn.max_pool3d}
_AVERAGE = {1: R.nn.avg_pool1d, 2: R.nn.avg_pool2d, 3: R.nn.avg_pool3d}


def pool_extents(attributes: Attributes, kernel: Extents, sizes: Extents) -> Extents:
    """Return the spatial extents of a pool's result.

    ONNX's shape inference is not used: with ``ceil_mode`` it counts windows that start after the
    input, which the specification of MaxPool and AveragePool ignores.

    ``sizes`` are the spatial extents of the input.
    """
    windows = read_windows(attributes, kernel, sizes)
    same = attributes.get("auto_pad", "NOTSET").startswith("SAME")
    # The specification and ONNX Runtime pad differently in these two cases.
    if same and max(windows.dilations) > 1:
        raise Refusal("auto_pad with dilations is ambiguous")
    if same:
        for size, span, stride in zip(sizes, windows.spans, windows.strides, strict=True):
            if (-(-size // stride) - 1) * stride + span - size <= -2:
                raise Refusal("auto_pad with strides beyond the kernel is ambiguous")
    ceil = bool(attributes.get("ceil_mode", 0)) and not same
    extents = []
    for size, span, begin, end, stride in zip(
        sizes, windows.spans, windows.begin, windows.end, windows.strides, strict=True
    ):
        room = size + begin + end - span
        count = (-(-room // stride) if ceil else room // stride) + 1
        # Windows that start in the padding at the end are ignored.
        extents.append(count - (ceil and (count - 1) * stride >= size + begin))
    return tuple(extents)


def _pool_type(node: onnx.NodeProto, graph: Graph) -> TensorType:
    attributes, data = node_attributes(node), graph.type_of(node.input[0])
    kernel = tuple(attributes.get("kernel_shape", ()))
    extents = pool_extents(attributes, kernel, data.shape[2:])
    return windowed_type(data, data.shape[1], extents)


@converts("MaxPool", result_type=_pool_type)
def max_pool(c: NodeContext) -> list[relax.Expr | None]:
    """Return the maximum of each window, and its index."""
    windows = _pool_windows(c)
    maxima = _pool(_MAX, c.input(), windows, include_pad=False)
    return [maxima, _places(c, windows) if c.uses_result(1) else None]


def _places(c: NodeContext, windows: Windows) -> relax.Expr:
    """Return the flat index in the input of each window's first maximum.

    The index is row-major, or with ``storage_order`` column-major within each channel's image.
    """
    sizes, by_columns = c.shape()[2:], bool(c.attribute("storage_order", 0))
    largest_of = reducer(largest=True, dtype=c.dtype())

    def taps(*index: tirx.Var) -> tuple[list[tirx.IterVar], list[tirx.Expr], tirx.Expr]:
        """Return a window's axes, its elements' positions, and whether they are in the image."""
        over = [te.reduce_axis((0, extent)) for extent in windows.kernel]
        at = [
            i * stride - begin + tap * dilation
            for i, stride, begin, tap, dilation in zip(
                index, windows.strides, windows.begin, over, windows.dilations, strict=True
            )
        ]
        inside = [test for i, n in zip(at, sizes, strict=True) for test in (i >= 0, i < n)]
        # Positions outside the image are clamped, and their values are not used.
        held = [te.min(te.max(i, 0), n - 1) for i, n in zip(at, sizes, strict=True)]
        return over, held, tirx.all(*inside)

    def compute(x: te.Tensor) -> te.Tensor:
        # The maximum is computed again, as the pool's result may be stored in another precision.
        def largest(n: tirx.Var, k: tirx.Var, *index: tirx.Var) -> tirx.Expr:
            over, held, inside = taps(*index)
            value = tirx.Select(inside, x(n, k, *held), lowest(c.dtype()))
            return largest_of(value, axis=over)

        best = te.compute(c.result.shape, largest, name="largest")

        def first(n: tirx.Var, k: tirx.Var, *index: tirx.Var) -> tirx.Expr:
            over, held, inside = taps(*index)
            value, largest = x(n, k, *held), best(n, k, *index)
            found = value == largest
            if c.is_float():  # if a window has a NaN, that is its maximum
                found = tirx.any(found, tirx.all(value != value, largest != largest))  # noqa: PLR0124
            number = _number(held, sizes).astype("int64")
            none = tirx.const(prod(sizes), "int64")
            return te.min(tirx.Select(tirx.all(found, inside), number, none), axis=over)

        places = te.compute(best.shape, first, name="first")

        def number(n: tirx.Var, k: tirx.Var, *index: tirx.Var) -> tirx.Expr:
            place = te.min(places(n, k, *index), tirx.const(prod(sizes) - 1, "int64"))
            if by_columns:
                digits = []
                for size in reversed(sizes):
                    digits.append(tirx.floormod(place, size))
                    place = tirx.floordiv(place, size)
                place = _number(digits, sizes[::-1])
            return (n * x.shape[1] + k).astype("int64") * prod(sizes) + place

        return te.compute(best.shape, number, name="places")

    return c.builder.call_te(compute, c.input(), primfunc_name_hint="max_pool_places")


def _number(digits: Sequence[tirx.Expr], sizes: Sequence[int]) -> tirx.Expr:
    """Return the row-major flat index of an element."""
    number, *others = digits
    for digit, size in zip(others, sizes[1:], strict=True):
        number = number * size + digit
    return number


def _unpooled_extents(node: onnx.NodeProto, graph: Graph) -> Extents:
    """Return the spatial extents of the input of the reversed pool."""
    attributes, sizes = node_attributes(node), graph.type_of(node.input[0]).shape[2:]
    windows = read_windows(attributes, tuple(attributes.get("kernel_shape", ())), sizes)
    return tuple(
        (size - 1) * stride + k - begin - end
        for size, stride, k, begin, end in zip(
            sizes, windows.strides, windows.kernel, windows.begin, windows.end, strict=True
        )
    )


def _unpool_type(node: onnx.NodeProto, graph: Graph) -> TensorType:
    data, extents = graph.type_of(node.input[0]), _unpooled_extents(node, graph)
    if len(node.input) > 2 and node.input[2]:
        if node.input[2] not in graph.constants:
            raise Refusal("its output_shape is computed at run time")
        shape = tuple(int(n) for n in graph.constants[node.input[2]])
        if shape[:2] != data.shape[:2] or len(shape) != len(data.shape):
            raise InvalidNode(f"its output_shape is {list(shape)} for {data}")
        if any(there < own for there, own in zip(shape[2:], extents, strict=True)):
            raise InvalidNode(f"its output_shape {list(shape)} is smaller than {list(extents)}")
        return TensorType(shape, data.dtype)
    return windowed_type(data, data.shape[1], extents)


@converts("MaxUnpool", result_type=_unpool_type)
def max_unpool(c: NodeContext) -> relax.Expr:
    """Scatter maxima to their former positions among zeros.

    If the given shape is larger than the attributes imply, ONNX's own test case takes indices in
    the smaller shape, ONNX Runtime in the larger one: such nodes are refused.
    """
    shape = (*c.shape()[:2], *_unpooled_extents(c.node, c.graph))
    if c.result.shape != shape:
        raise Refusal(
            f"its output_shape is {list(c.result.shape)}, where its attributes give {list(shape)}, "
            "and implementations disagree in which of the two its indices count"
        )
    zeros = c.constant(np.zeros(prod(shape)))
    places, values = c.reshaped(1, (-1,)), c.reshaped(0, (-1,))
    # Indices are clamped, so that nothing is written outside the result.
    inside = R.minimum(
        R.maximum(places, constant(np.array(0))), constant(np.array(prod(shape) - 1))
    )
    return R.reshape(c.emit(R.scatter_elements(zeros, c.emit(inside), values, 0)), shape)


@converts("AveragePool", result_type=_pool_type)
def average_pool(c: NodeContext) -> relax.Expr:
    """Return the mean of each window, with or without the padding in the divisor.

    Relax's operator has another divisor if windows are dilated or reach beyond the padding
    (``ceil_mode``); then the window's sum is divided by the number of elements that ONNX
    counts, which is constant.
    """
    windows, with_padding = _pool_windows(c), bool(c.attribute("count_include_pad", 0))
    counts = _counts(c, windows, with_padding)
    kernel = prod(windows.kernel)
    simple = all(d == 1 for d in windows.dilations) and not c.attribute("ceil_mode", 0)
    own_count = (counts == kernel).all()
    if not any(windows.pads) or (simple and not with_padding and not own_count):
        return _pool(_AVERAGE, c.input(), windows, include_pad=False)
    mean = _pool(_AVERAGE, c.input(), windows)
    return mean if own_count else mean * c.constant(kernel / counts)


@converts("LpPool", result_type=_pool_type)
def lp_pool(c: NodeContext) -> relax.Expr:
    """Return the p-norm of each window."""
    windows = _pool_windows(c)
    count = c.constant(prod(windows.kernel))
    return _norm(c, lambda powers: _pool(_AVERAGE, powers, windows) * count)


def _norm(c: NodeContext, total: Callable[[relax.Expr], relax.Expr]) -> relax.Expr:
    """Return a p-norm; ``total`` sums the powers."""
    p, x = c.attribute("p", 2), R.abs(c.input())
    if p < 1:
        raise Refusal(f"p is {p}, expected at least 1")
    return constant_power(c, c.emit(total(constant_power(c, x, p))), 1 / p)


def _pool_windows(c: NodeContext) -> Windows:
    """Read a pool's windows, with the end padding that gives ONNX's number of windows."""
    sizes = c.shape()[2:]
    windows = read_windows(c.attributes, tuple(c.required("kernel_shape")), sizes)
    if len(sizes) not in _MAX:
        raise Refusal(f"it has {len(sizes)} spatial axes; one to three are supported")
    end = []
    for axis, size in enumerate(sizes):
        # With ``ceil_mode`` the last window may reach beyond the padding.
        last = (c.result.shape[2 + axis] - 1) * windows.strides[axis] + windows.spans[axis]
        end.append(max(windows.end[axis], last - size - windows.begin[axis]))
    return replace(windows, end=tuple(end))


def _pool(
    operators: Mapping[int, _Operator], x: relax.Expr, windows: Windows, include_pad: bool = True
) -> relax.Expr:
    return operators[len(windows.kernel)](
        x, pool_size=windows.kernel, strides=windows.strides, padding=windows.pads,
        dilation=windows.dilations, ceil_mode=False, count_include_pad=include_pad,
    )  # fmt: skip


def _counts(c: NodeContext, windows: Windows, with_padding: bool) -> np.ndarray:
    """Return the divisor of each window's mean, as (1, 1, spatial...).

    It counts elements in the input, or in the input and the attributes' padding, but never beyond
    that, where ``ceil_mode`` leads.
    """
    sizes, declared = c.shape()[2:], read_windows(c.attributes, windows.kernel, c.shape()[2:])
    counts = np.ones((1, 1), np.int64)
    for axis, size in enumerate(sizes):
        outputs = c.result.shape[2 + axis]
        starts = np.arange(outputs) * windows.strides[axis] - windows.begin[axis]
        taps = np.arange(windows.kernel[axis]) * windows.dilations[axis]
        positions = starts[:, None] + taps[None, :]
        low = -declared.begin[axis] if with_padding else 0
        high = size + declared.end[axis] if with_padding else size
        inside = ((positions >= low) & (positions < high)).sum(axis=1)
        counts = np.multiply.outer(counts, inside)
    return counts


@converts("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def global_pool(c: NodeContext) -> relax.Expr:
    """Return the mean, maximum or p-norm over all spatial axes, which keep the extent 1."""
    axes = list(range(2, len(c.shape())))
    if c.op_type == "GlobalLpPool":
        return _norm(c, lambda powers: wide_reduction(c, R.sum, powers, axes, keepdims=True))
    if c.op_type == "GlobalAveragePool":
        return wide_reduction(c, R.mean, c.input(), axes, keepdims=True)
    return R.max(c.input(), axes, keepdims=True)
