"""Folds BatchNormalization into the convolution or fully connected layer before it.

In inference a BatchNormalization is ``y = x · s + t`` per channel, with
``s = gamma / sqrt(variance + epsilon)`` and ``t = beta - mean · s``.  When x is the
result of a layer with constant weights, s scales the weights and the bias becomes
``bias · s + t``:

    Conv(x, W, b) → BatchNormalization        becomes     Conv(x, W · s, b · s + t)
"""

from __future__ import annotations

import numpy as np
import onnx

from .graph import Graph
from .windows import node_attributes

_LAYERS = ("Conv", "ConvTranspose", "Gemm")


def fold_batch_norms(graph: Graph) -> int:
    """Fold every BatchNormalization that can be, in place.

    A layer is left alone when something else uses its result, when a weight is not
    constant or too large to be rewritten, or when the new weights would overflow.

    Returns
    -------
    int
        How many were folded.
    """
    producers = {name: node for node in graph.nodes for name in node.output}
    uses = graph.consumers()
    folded: dict[int, onnx.NodeProto] = {}
    removed: set[int] = set()
    for node in graph.nodes:
        if node.op_type != "BatchNormalization" or any(node.output[1:]):
            continue
        layer = producers.get(node.input[0])
        if layer is None or layer.op_type not in _LAYERS or uses[node.input[0]] != 1:
            continue
        layer = folded.get(id(layer), layer)
        merged = _merge(layer, node, graph)
        if merged is not None:
            folded[id(producers[node.input[0]])] = merged
            producers[node.output[0]] = producers[node.input[0]]
            removed.add(id(node))
    graph.nodes = [folded.get(id(node), node) for node in graph.nodes if id(node) not in removed]
    return len(removed)


def scale_and_shift(parameters: list[np.ndarray], epsilon: float) -> tuple[np.ndarray, np.ndarray]:
    """Return a BatchNormalization's s and t in float64 from gamma, beta, mean and variance."""
    gamma, beta, mean, variance = (array.astype(np.float64) for array in parameters)
    with np.errstate(all="ignore"):
        scale = gamma / np.sqrt(variance + epsilon)
        return scale, beta - mean * scale


def inference_mode(node: onnx.NodeProto) -> bool:
    """Whether a BatchNormalization uses given statistics, one for each channel."""
    attributes = node_attributes(node)
    return not attributes("training_mode", 0) and attributes("spatial", 1) == 1


def _merge(layer: onnx.NodeProto, norm: onnx.NodeProto, graph: Graph) -> onnx.NodeProto | None:
    """Return the layer with the norm in its weights, ``None`` if that is not possible."""
    parameters = [graph.constants.get(name) for name in norm.input[1:5]]
    weight = graph.constants.get(layer.input[1])
    bias_name = layer.input[2] if len(layer.input) > 2 else ""
    bias = graph.constants.get(bias_name) if bias_name else None
    if weight is None or weight.nbytes >= graph.large_weight_bytes or (bias_name and bias is None):
        return None
    present = [array for array in parameters if array is not None]
    if len(present) != 4 or not inference_mode(norm):
        return None
    attributes = node_attributes(layer)
    scale, shift = scale_and_shift(present, _epsilon(norm))
    old_bias = np.zeros(1) if bias is None else bias.astype(np.float64)
    if layer.op_type == "Gemm":
        # Gemm computes alpha · A · B + beta · C: the bias takes beta in, alpha stays.
        if old_bias.ndim == 2 and old_bias.shape[0] != 1:
            return None
        old_bias = old_bias * attributes("beta", 1.0)
        new_weight = _scaled(weight, scale, 0 if attributes("transB", 0) else 1)
    elif layer.op_type == "Conv":
        new_weight = _scaled(weight, scale, 0)
    else:
        # ConvTranspose's weight is I × (O / groups): each group of inputs has its outputs.
        groups = attributes("group", 1)
        grouped = weight.reshape(groups, weight.shape[0] // groups, *weight.shape[1:])
        factors = scale.reshape(groups, 1, -1, *[1] * (weight.ndim - 2))
        new_weight = (grouped.astype(np.float64) * factors).reshape(weight.shape)
    new_bias = np.broadcast_to(old_bias.reshape(-1) * scale + shift, scale.shape)
    return _rewritten(layer, norm, new_weight, new_bias, weight, graph)


def _scaled(weight: np.ndarray, scale: np.ndarray, axis: int) -> np.ndarray:
    shape = [1] * weight.ndim
    shape[axis] = -1
    return weight.astype(np.float64) * scale.reshape(shape)


def _rewritten(
    layer: onnx.NodeProto,
    norm: onnx.NodeProto,
    weight: np.ndarray,
    bias: np.ndarray,
    old_weight: np.ndarray,
    graph: Graph,
) -> onnx.NodeProto | None:
    """Store the new weights and return the layer that uses them, with the norm's result."""
    with np.errstate(over="ignore"):
        new_weight, new_bias = weight.astype(old_weight.dtype), bias.astype(old_weight.dtype)
    overflow = np.isinf(new_weight) & np.isfinite(weight)
    if overflow.any() or (np.isinf(new_bias) & np.isfinite(bias)).any():
        return None
    names = [f"{norm.output[0]}#{part}" for part in ("weight", "bias")]
    graph.constants.update(zip(names, (new_weight, new_bias), strict=True))
    merged = onnx.NodeProto()
    merged.CopyFrom(layer)
    del merged.input[1:]
    merged.input.extend(names)
    merged.output[0] = norm.output[0]
    for attribute in merged.attribute:
        if layer.op_type == "Gemm" and attribute.name == "beta":
            attribute.f = 1.0
    return merged


def _epsilon(norm: onnx.NodeProto) -> float:
    return float(node_attributes(norm)("epsilon", 1e-5))
