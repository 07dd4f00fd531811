"""Rewrites of a model's nodes before conversion: quantized moves, half precision, batch norms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace

import numpy as np
import onnx

from ..ir.tensors import TensorType
from .graph import Graph, node_attributes, node_name

_MOVES = ("Flatten", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze")

#: Layers into whose weights a BatchNormalization can be folded.
_LAYERS = ("Conv", "ConvTranspose", "Gemm")


def move_quantized(
    nodes: Sequence[onnx.NodeProto], constants: Mapping[str, np.ndarray]
) -> list[onnx.NodeProto]:
    """Return the nodes with data movement exchanged with the DequantizeLinear before it.

    DequantizeLinear then is next to the product that can read its integers.  This applies only to
    tensors with a single scale, which is valid for any order of elements::

        before  MatMul(Transpose(DequantizeLinear(q, s, z)), w)
        after   MatMul(DequantizeLinear(Transpose(q), s, z), w)
    """
    result: list[onnx.NodeProto] = []
    reals: dict[str, onnx.NodeProto] = {}
    for node in nodes:
        before = reals.get(node.input[0]) if node.input else None
        if before is not None and not node.domain and node.op_type in _MOVES:
            moved = deepcopy(node)
            moved.name, moved.input[0] = f"{node_name(node)}:quantized", before.input[0]
            result.append(moved)
            for index, output in enumerate(node.output):
                if not output:
                    continue
                moved.output[index] = f"{output}:quantized"
                real = deepcopy(before)
                real.name = output if index else node_name(node)
                real.input[0], real.output[0] = moved.output[index], output
                result.append(real)
                reals[output] = real
            continue
        if node.op_type == "DequantizeLinear" and not node.domain:
            scale = constants.get(node.input[1])
            if scale is not None and scale.size == 1:
                reals[node.output[0]] = node
        result.append(node)
    return result


def widen(graph: Graph) -> None:
    """Change the type of all float16 values to float32, in place.

    Sums need more than the 11 significant bits of float16.  Therefore all float16 becomes fp32, as
    in ONNX Runtime on CPUs: nothing is rounded between operators, unless tensors are stored in 16
    bits (``--dtype fp16``).  The application's inputs and outputs keep their type, and a separate
    function converts each.  Weights that are exact in 16 bits are stored so; large ones keep their
    type in memory.

    Custom operators define their own types: models that have any are not changed.
    """
    graphs = list(graph.with_bodies())
    if any(node.domain for each in graphs for node in each.nodes):
        return
    for each in graphs:
        _widen(each)
    for body in graphs[1:]:
        # The caller of a body is its loop, which passes fp32.
        body.half_outputs = set()
        body.inputs = tuple(
            replace(i, dtype="float32") if i.dtype == "float16" else i for i in body.inputs
        )
        body.types |= {i.name: TensorType(i.shape, i.dtype) for i in body.inputs}


def _widen(graph: Graph) -> None:
    if graph.problems or all(kind.dtype != "float16" for kind in graph.types.values()):
        return
    graph.is_widened = True
    graph.half_outputs = {n for n in graph.outputs if graph.type_of(n).dtype == "float16"}
    inputs = {info.name for info in graph.inputs}
    for name, kind in graph.types.items():
        if kind.dtype == "float16" and name not in inputs:
            graph.types[name] = TensorType(kind.shape, "float32")
    for name, array in graph.constants.items():
        if array.dtype == np.float16 and array.nbytes < graph.large_weight_bytes:
            graph.constants[name] = array.astype(np.float32)


def fold_batch_norms(graph: Graph) -> None:
    """Fold BatchNormalization into the convolution or fully connected layer before it, in place.

    In inference a BatchNormalization is ``y = x · s + t`` per channel, with
    ``s = gamma / sqrt(variance + epsilon)`` and ``t = beta - mean · s``.  If x is the
    result of a layer with constant weights, s scales the weights and the bias becomes
    ``bias · s + t``::

        Conv(x, W, b) → BatchNormalization        becomes     Conv(x, W · s, b · s + t)

    A layer is not changed if its result has other uses, if a weight is not constant or too
    large to be rewritten, or if the new weights would overflow.
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
        merged = _merged(folded.get(id(layer), layer), node, graph)
        if merged is not None:
            folded[id(layer)] = merged
            producers[node.output[0]] = layer
            removed.add(id(node))
    graph.nodes = [folded.get(id(node), node) for node in graph.nodes if id(node) not in removed]


def scale_and_shift(parameters: list[np.ndarray], epsilon: float) -> tuple[np.ndarray, np.ndarray]:
    """Return a BatchNormalization's s and t in float64 from gamma, beta, mean and variance."""
    gamma, beta, mean, variance = (array.astype(np.float64) for array in parameters)
    with np.errstate(all="ignore"):
        scale = gamma / np.sqrt(variance + epsilon)
        return scale, beta - mean * scale


def _merged(layer: onnx.NodeProto, norm: onnx.NodeProto, graph: Graph) -> onnx.NodeProto | None:
    """Return the layer with the norm folded into its weights, ``None`` if that is not possible."""
    weight = graph.constants.get(layer.input[1])
    bias_name = layer.input[2] if len(layer.input) > 2 else ""
    bias = graph.constants.get(bias_name) if bias_name else None
    if weight is None or weight.nbytes >= graph.large_weight_bytes or (bias_name and bias is None):
        return None
    parameters = [graph.constants[name] for name in norm.input[1:5] if name in graph.constants]
    attributes, norm_attributes = node_attributes(layer), node_attributes(norm)
    in_training = norm_attributes.get("training_mode", 0) or norm_attributes.get("spatial", 1) != 1
    if len(parameters) != 4 or in_training:
        return None
    scale, shift = scale_and_shift(parameters, float(norm_attributes.get("epsilon", 1e-5)))
    old_bias = np.zeros(1) if bias is None else bias.astype(np.float64)
    if layer.op_type == "Gemm":
        # Gemm computes alpha · A · B + beta · C: beta is folded into the bias, alpha stays.
        if old_bias.ndim == 2 and old_bias.shape[0] != 1:
            return None
        old_bias = old_bias * attributes.get("beta", 1.0)
        transposed = attributes.get("transB", 0)
        new_weight = weight.astype(np.float64) * (scale[:, None] if transposed else scale)
    elif layer.op_type == "Conv":
        new_weight = weight.astype(np.float64) * scale.reshape(-1, *[1] * (weight.ndim - 1))
    else:
        # ConvTranspose's weight is I × (O / groups): each group of inputs has its own outputs.
        groups = attributes.get("group", 1)
        grouped = weight.reshape(groups, weight.shape[0] // groups, *weight.shape[1:])
        factors = scale.reshape(groups, 1, -1, *[1] * (weight.ndim - 2))
        new_weight = (grouped.astype(np.float64) * factors).reshape(weight.shape)
    new_bias = np.broadcast_to(old_bias.reshape(-1) * scale + shift, scale.shape)
    exact = {f"{norm.output[0]}#weight": new_weight, f"{norm.output[0]}#bias": new_bias}
    with np.errstate(over="ignore"):
        rounded = {name: array.astype(weight.dtype) for name, array in exact.items()}
    if any((np.isinf(rounded[name]) & np.isfinite(exact[name])).any() for name in exact):
        return None
    graph.constants |= rounded
    statistics = [bias_name, *norm.input[1:5]]
    for name, sources in zip(
        rounded, ([layer.input[1], *norm.input[1:5:3]], statistics), strict=True
    ):
        graph.origins[name] = graph.initializers(sources)
    merged = deepcopy(layer)
    del merged.input[1:]
    merged.input.extend(rounded)
    merged.output[0] = norm.output[0]
    for attribute in merged.attribute:
        if layer.op_type == "Gemm" and attribute.name == "beta":
            attribute.f = 1.0
    return merged
