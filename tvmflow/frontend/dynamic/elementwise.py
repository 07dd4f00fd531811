"""Rules for operators that compute each element or sample independently."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx

from ..converter import normalized_axis
from ..graph import ELEMENTWISE, node_attributes
from .rewriter import RunTimeSizes, rule
from .sizes import Size


def _common(r: RunTimeSizes, names: Sequence[str]) -> tuple[int, Size]:
    """Return the bounded axis, counted from the end, and size that broadcast operands share."""
    found = [
        (r.bounded[n].axis - len(r.shape(n)), r.bounded[n].size) for n in names if n in r.bounded
    ]
    if len(set(found)) > 1:
        raise r.refusal("its inputs need not have the same number of elements")
    axis, size = found[0]
    for name in names:
        shape = r.shape(name)
        if name not in r.bounded and len(shape) >= -axis and shape[axis] != 1:
            raise r.refusal(f"its input {name!r} has {shape[axis]} elements along the same axis")
    return axis, size


@rule(*ELEMENTWISE, "DequantizeLinear", "QuantizeLinear")
def elementwise(r: RunTimeSizes, node: onnx.NodeProto) -> None:
    """Keep an elementwise operator; the result is bounded like its operands."""
    names = [name for name in node.input if name]
    axis, size = _common(r, names)
    places: dict[int, str] = {}
    extent = min(r.shape(n)[axis] for n in names if n in r.bounded)
    for index, name in enumerate(node.input):
        if name in r.bounded:
            places[index] = r.front(name, len(r.shape(name)) + axis, extent)
    if node.op_type in ("Div", "Mod") and np.dtype(r.graph.type_of(names[0]).dtype).kind in "iu":
        # Integer division by zero, or of the least integer by -1, would crash the process.
        for index, name in places.items():
            r.mark(name, len(r.shape(name)) + axis, size)
            places[index] = r.masked(name, index)
    r.keep(places)
    (output,) = node.output
    r.mark(output, len(r.shape(output)) + axis, size)


@rule("CastLike")
def cast_like(r: RunTimeSizes, node: onnx.NodeProto) -> None:
    """Keep CastLike, which uses only the type of its second operand."""
    r.keep()
    here = r.bounded.get(node.input[0])
    if here is not None:
        r.mark(node.output[0], here.axis, here.size)


@rule(
    "AveragePool", "BatchNormalization", "Conv", "ConvTranspose", "DepthToSpace",
    "GlobalAveragePool", "GlobalMaxPool", "InstanceNormalization", "LRN", "MaxPool", "Resize",
    "SpaceToDepth",
)  # fmt: skip
def by_sample(r: RunTimeSizes, node: onnx.NodeProto) -> None:
    """Keep an operator that computes each sample of a bounded batch independently."""
    r.only(0)
    if node_attributes(node).get("training_mode", 0):
        raise r.refusal("it computes statistics of the whole batch")
    here = r.bounded[node.input[0]]
    if here.axis != 0:
        raise r.refusal(f"its axis {here.axis} is not the batch")
    r.keep()
    for name in filter(None, node.output):
        if r.shape(name)[0] != r.shape(node.input[0])[0]:
            raise r.refusal("it changes the number of samples")
        r.mark(name, 0, here.size)


@rule("OneHot")
def one_hot(r: RunTimeSizes, node: onnx.NodeProto) -> None:
    """Keep OneHot, which adds an axis to those of the indices."""
    r.only(0)
    here = r.bounded[node.input[0]]
    rank = len(r.shape(node.input[0])) + 1
    axis = normalized_axis(node_attributes(node).get("axis", -1), rank)
    r.keep()
    r.mark(node.output[0], here.axis + (here.axis >= axis), here.size)
