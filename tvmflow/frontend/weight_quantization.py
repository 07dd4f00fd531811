"""Option `weights`: round a model's weights to fewer bits, for libraries that store them so.

The weights are rounded in the ONNX model before anything else reads it, so the compiler and the
reference for its results have the same weights.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import onnx
from onnx import numpy_helper

from ..errors import CompileError
from .nested import all_nodes
from .rewrite import scale_and_shift
from .source import Source, to_array

#: Smallest weights that are rounded, in bytes.
LEAST_BYTES = 1024
#: Largest int8 whose negative is also an int8.
LARGEST = 127


def with_rounded_weights(source: Source, kind: str | None) -> Source:
    """Return a copy of a model whose large weights are rounded to numbers of the type ``kind``.

    ``fp16`` rounds all of them to 16 bits.  ``int8`` rounds weights of convolutions and matrix
    products, and tables of look-ups, to up to 127 multiples of a step; each output channel and each
    row of a table has its own step.  BatchNormalization is folded into the convolution before it
    first.

    Raises `CompileError` if there is no such weight.
    """
    if kind is None:
        return source
    model = onnx.ModelProto()
    model.CopyFrom(source.model)
    source = replace(source, model=model)
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    _fold_norms(model.graph, tensors, source)
    axes = dict(_channel_axes(model.graph))
    count = 0
    for name, tensor in tensors.items():
        if tensor.data_type != onnx.TensorProto.FLOAT or (kind == "int8" and name not in axes):
            continue
        array = to_array(tensor, source)
        if not LEAST_BYTES <= array.nbytes < source.large_weight_bytes:
            continue
        rounded = in_half(array) if kind == "fp16" else in_steps(array, axes[name])
        if rounded is not None:
            tensor.CopyFrom(numpy_helper.from_array(rounded, name))
            count += 1
    if not count:
        raise CompileError(
            f"The weights of {source.label} were to be stored as {kind}; expected weights in fp32 "
            f"of at least {LEAST_BYTES} bytes, found none: there is nothing to do.",
            remedy="Leave `weights` out.",
        )
    return source


def in_half(array: np.ndarray) -> np.ndarray | None:
    """Round to fp16 and return the result in fp32; ``None`` if a number overflows."""
    with np.errstate(over="ignore"):
        rounded = array.astype(np.float16).astype(np.float32)
    return rounded if np.isfinite(rounded).all() else None


def in_steps(array: np.ndarray, axis: int) -> np.ndarray | None:
    """Round to multiples of a step for each index of ``axis``; ``None`` if a number is not finite.

    A step has 17 significant bits, so that its multiples are exact in fp32.
    """
    others = tuple(i for i in range(array.ndim) if i != axis % array.ndim)
    largest = np.abs(array).max(axis=others, keepdims=True, initial=0)
    if not np.isfinite(largest).all():
        return None
    bits = (largest.astype(np.float32) / np.float32(LARGEST)).view(np.uint32)
    steps = ((bits + 0x7F) & ~np.uint32(0x7F)).view(np.float32)
    # Subnormal steps have fewer significant bits; such weights are rounded to zero.
    steps[steps < 1e-30] = np.inf
    times = np.rint(array / steps)
    return np.where(np.isinf(steps), 0, times * np.where(np.isinf(steps), 0, steps)).astype(
        np.float32
    )


def _channel_axes(graph: onnx.GraphProto) -> Iterator[tuple[str, int]]:
    """Yield the names of weights that are used once, with the axis of their output channels."""
    uses = Counter(name for node in all_nodes(graph.node) for name in node.input)
    for node in graph.node:
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        axis = None
        if node.op_type == "Conv":
            axis = 0
        elif node.op_type == "ConvTranspose" and attributes.get("group", 1) == 1:
            axis = 1
        elif node.op_type == "MatMul":
            axis = -1
        elif node.op_type == "Gemm":
            axis = 0 if attributes.get("transB", 0) else 1
        elif node.op_type == "Gather" and attributes.get("axis", 0) == 0:
            yield node.input[0], 0
        if axis is not None and uses[node.input[1]] == 1:
            yield node.input[1], axis


def _fold_norms(
    graph: onnx.GraphProto, tensors: dict[str, onnx.TensorProto], source: Source
) -> None:
    """Fold norms after convolutions into their weights, as the compiler would do later."""
    uses = Counter(name for node in all_nodes(graph.node) for name in node.input)
    uses.update(output.name for output in graph.output)
    producers = {node.output[0]: node for node in graph.node if node.op_type == "Conv"}
    for norm in [node for node in graph.node if node.op_type == "BatchNormalization"]:
        layer = producers.get(norm.input[0])
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in norm.attribute}
        if layer is None or attributes.get("training_mode", 0) or len(norm.output) > 1:
            continue
        read = [*layer.input[1:], *norm.input[1:5]]
        alone = uses[layer.output[0]] == 1 and uses[layer.input[1]] == 1
        if not alone or any(name not in tensors for name in read):
            continue
        weight, *bias, gamma, beta, mean, variance = (
            to_array(tensors[name], source).astype(np.float64) for name in read
        )
        if tensors[layer.input[1]].data_type != onnx.TensorProto.FLOAT:
            continue
        epsilon = float(attributes.get("epsilon", 1e-5))
        scale, shift = scale_and_shift([gamma, beta, mean, variance], epsilon)
        folded = {
            f"{norm.output[0]}#weight": weight * scale.reshape(-1, *[1] * (weight.ndim - 1)),
            f"{norm.output[0]}#bias": (bias[0] if bias else 0.0) * scale + shift,
        }
        with np.errstate(over="ignore"):
            arrays = {name: array.astype(np.float32) for name, array in folded.items()}
        if not all(np.isfinite(array).all() for array in arrays.values()):
            continue
        for name, array in arrays.items():
            tensors[name] = graph.initializer.add()
            tensors[name].CopyFrom(numpy_helper.from_array(array, name))
        uses.update(arrays)
        del layer.input[1:]
        layer.input.extend(arrays)
        layer.output[0] = norm.output[0]
        graph.node.remove(norm)
