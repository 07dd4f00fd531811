"""Rules for reductions, extremes and sorting, for which invalid elements become neutral."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np
import onnx

from ..converter import normalized_axis
from ..graph import lists_of, node_attributes
from . import sizes
from .rewriter import RunTimeSizes, highest, lowest, rule
from .sizes import Size

#: Neutral elements of reductions, as functions of the dtype.
_NEUTRAL: dict[str, Callable[[str], float | bool]] = {
    **dict.fromkeys(
        ("ReduceSum", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum", "ReduceMean"),
        lambda dtype: 0,
    ),
    "ReduceProd": lambda dtype: 1,
    "ReduceMax": lowest,
    "ReduceMin": highest,
    "ReduceLogSumExp": lowest,
}


@rule(*_NEUTRAL)
def reduction(r: RunTimeSizes, node: onnx.NodeProto) -> None:
    """Reduce; over a bounded axis, replace invalid elements with the neutral element first."""
    r.only(0)
    name, attributes = node.input[0], node_attributes(node)
    here, kind = r.bounded[name], r.graph.type_of(name)
    rank, keepdims = len(kind.shape), attributes.get("keepdims", 1)
    axes = attributes.get("axes")
    if axes is None and r.has(1):
        axes = r.known(1, "axes")
    if not axes and attributes.get("noop_with_empty_axes", 0):
        r.keep()
        r.mark(node.output[0], here.axis, here.size)
        return
    reduced = {normalized_axis(int(a), rank) for a in axes} if axes else set(range(rank))
    if here.axis not in reduced:
        r.keep()
        before = 0 if keepdims else sum(axis < here.axis for axis in reduced)
        r.mark(node.output[0], here.axis - before, here.size)
        return
    masked = r.masked(name, _NEUTRAL[node.op_type](kind.dtype))
    if node.op_type == "ReduceLogSumExp":
        # ONNX defines the result over no elements as the logarithm of zero.
        inputs = [masked, *node.input[1:]]
        found = r.emit(node.op_type, inputs, **attributes)
        none = r.emit("Equal", [r.scalar(here.size), r.integers(0)])
        r.become("Where", [none, r.constant(np.array(-np.inf, kind.dtype)), found])
        return
    if node.op_type != "ReduceMean":
        r.keep({0: masked})
        return
    # The mean is the sum divided by the number of valid elements.
    if np.dtype(kind.dtype).kind != "f":
        raise r.refusal("the mean of integers is not supported")
    order, older = lists_of("ReduceSum", r.graph.opset, r.constant, axes=sorted(reduced))
    summed = r.emit("ReduceSum", [masked, *order], keepdims=keepdims, **older)
    others = prod(kind.shape[axis] for axis in reduced if axis != here.axis)
    number = r.cast(r.scalar(sizes.multiply(here.size, others)), kind.dtype)
    r.become("Div", [summed, number])


@rule("ArgMax", "ArgMin")
def position(r: RunTimeSizes, node: onnx.NodeProto) -> None:
    """Find the first extreme; invalid elements come last and become least extreme."""
    name, attributes = node.input[0], node_attributes(node)
    here, kind = r.bounded[name], r.graph.type_of(name)
    axis = normalized_axis(attributes.get("axis", 0), len(kind.shape))
    if axis != here.axis:
        r.keep()
        gone = not attributes.get("keepdims", 1) and axis < here.axis
        r.mark(node.output[0], here.axis - gone, here.size)
        return
    if attributes.get("select_last_index", 0):
        raise r.refusal("select_last_index is not supported")
    fill = lowest if node.op_type == "ArgMax" else highest
    r.keep({0: r.masked(name, fill(kind.dtype))})


@rule("Softmax", "LogSoftmax")
def softmax(r: RunTimeSizes, node: onnx.NodeProto) -> None:
    """Normalise; over a bounded axis, invalid elements become -inf and get probability zero."""
    name = node.input[0]
    here, rank = r.bounded[name], len(r.shape(name))
    old = r.graph.opset < 13
    axis = normalized_axis(node_attributes(node).get("axis", 1 if old else -1), rank)
    over = here.axis >= axis if old else here.axis == axis
    r.keep({0: r.masked(name, -np.inf)} if over else None)
    r.mark(node.output[0], here.axis, here.size)


@rule("CumSum")
def cumulative_sum(r: RunTimeSizes, node: onnx.NodeProto) -> None:
    """Keep a cumulative sum; invalid elements become zero if it starts at the end."""
    r.only(0)
    name = node.input[0]
    here = r.bounded[name]
    backwards = node_attributes(node).get("reverse", 0)
    r.keep({0: r.masked(name, 0)} if backwards else None)
    r.mark(node.output[0], here.axis, here.size)


@rule("TopK")
def top_k(r: RunTimeSizes, node: onnx.NodeProto) -> None:
    """Select the first k of a sorted axis; k may be a size that the axis never falls short of."""
    name, attributes = node.input[0], node_attributes(node)
    r.only(0)
    kind = r.graph.type_of(name)
    axis = normalized_axis(attributes.get("axis", -1), len(kind.shape))
    (k,) = r.numbers(1, "number of elements") if r.has(1) else (attributes["k"],)
    here = r.bounded.get(name)
    if here is not None and here.axis != axis and isinstance(k, Size):
        raise r.refusal("both its data and its result have an unknown number")
    extent = r.extents(name)[axis]
    if sizes.minimum(k, extent) != k:
        raise r.refusal("there may be fewer elements than it takes (the minimum of both would do)")
    if here is not None and here.axis == axis:
        largest = attributes.get("largest", 1)
        whole = np.dtype(kind.dtype).kind != "f"
        # NaN sorts as the largest number, and equal numbers keep their order.
        last = (highest(kind.dtype) if whole else np.nan) if not largest else lowest(kind.dtype)
        name = r.masked(name, last)
    most = min(sizes.most(k), kind.shape[axis])
    r.keep({0: name, **({1: r.integers([most])} if r.has(1) else {})})
    for output in filter(None, node.output):
        if here is not None and here.axis != axis:
            r.mark(output, here.axis, here.size)
        else:
            r.mark(output, axis, k)
