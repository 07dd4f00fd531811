"""One walk over the nodes that gives every value a type and computes what is constant."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import helper, numpy_helper, shape_inference

from ..errors import ModelError
from .constants import fold
from .graph import Graph, TensorType, node_name
from .prepare import DEFAULT_DOMAINS
from .slices import slice_ranges
from .weights import DTYPES, dtype_name
from .windows import (
    POOLS,
    WindowError,
    node_attributes,
    pool_extents,
    transposed_extents,
)

#: Constants up to this size are shown to ONNX's shape inference (shapes, axes, scales).
_SHAPE_DATA_ELEMENTS = 1024

#: Operators of which ONNX's inference knows only the rank, but whose specification says more.
_LIKE_FIRST_INPUT = ("GroupNormalization", "MeanVarianceNormalization")

#: Operators whose extents are worked out here instead.
_WINDOWED = (*POOLS, "ConvTranspose")


def propagate(graph: Graph) -> None:
    """Infer static types, fold constants and drop what has no effect, in place.

    Afterwards ``graph.nodes`` holds only nodes that have to run, and
    ``graph.problems`` those that never can: of unknown operators or domains, with nested
    graphs, or with a result whose shape depends on values at run time.

    Raises
    ------
    ModelError
        If ONNX's shape inference finds a contradiction, such as shapes that do not fit.
    """
    kept: list[onnx.NodeProto] = []
    aliases: dict[str, str] = {}
    for original in graph.nodes:
        node = _with_inputs(original, aliases)
        reason = _structural_reason(node, graph.opset)
        if reason is not None:
            graph.refuse(node, reason)
            kept.append(node)
        elif _is_identity(node, graph):
            aliases[node.output[0]] = node.input[0]
        elif not all(n in graph.types or n in graph.constants for n in node.input if n):
            kept.append(node)  # something before it is refused; it may have problems of its own
        else:
            types, reason = _infer(node, graph)
            values = fold(node, graph, types) or _empty(types)
            graph.constants.update(values)
            if values and all(name in values for name in node.output if name):
                continue
            graph.types.update({n: kind for n, kind in types.items() if n not in values})
            if reason is not None:
                graph.refuse(node, reason)
            kept.append(node)
    graph.nodes = kept
    graph.outputs = [aliases.get(name, name) for name in graph.outputs]
    graph.drop_unused_nodes()


def _with_inputs(node: onnx.NodeProto, aliases: Mapping[str, str]) -> onnx.NodeProto:
    """Return the node with the inputs that aliases stand for."""
    if node.domain == "" and not any(name in aliases for name in node.input):
        return node
    renamed = onnx.NodeProto()
    renamed.CopyFrom(node)
    if node.domain in DEFAULT_DOMAINS:
        renamed.ClearField("domain")
    for index, name in enumerate(renamed.input):
        renamed.input[index] = aliases.get(name, name)
    return renamed


def _structural_reason(node: onnx.NodeProto, opset: int) -> str | None:
    """Refuse nodes of which nothing can be said: unknown operators, nested graphs."""
    if node.domain:
        return "only ONNX's own operators are supported"
    if any(a.type in (a.GRAPH, a.GRAPHS) for a in node.attribute):
        return "nested graphs (branches and loop bodies) are not supported"
    if not onnx.defs.has(node.op_type, opset, ""):
        return f"operator set {opset} has no such operator"
    return None


def _is_identity(node: onnx.NodeProto, graph: Graph) -> bool:
    """Whether the node only passes its first input on."""
    if node.op_type == "Identity":
        return True
    if node.op_type != "Dropout" or any(node.output[1:]):
        return False
    training = graph.constants.get(node.input[2]) if len(node.input) > 2 and node.input[2] else False
    return training is not None and not np.any(training)


def _empty(types: Mapping[str, TensorType]) -> dict[str, np.ndarray]:
    """Return the results that have no elements: nothing needs to run for them."""
    return {
        name: np.zeros(kind.shape, kind.dtype) for name, kind in types.items() if kind.elements == 0
    }


def _infer(node: onnx.NodeProto, graph: Graph) -> tuple[dict[str, TensorType], str | None]:
    """Return the static types of a node's results, or what stands against them."""
    input_types, input_data = {}, {}
    for name in filter(None, node.input):
        if name in graph.constants:
            array = graph.constants[name]
            elem_type = helper.np_dtype_to_tensor_dtype(array.dtype)
            input_types[name] = helper.make_tensor_type_proto(elem_type, array.shape)
            if array.size <= _SHAPE_DATA_ELEMENTS:
                input_data[name] = numpy_helper.from_array(np.array(array), name)
        else:
            kind = graph.types[name]
            elem_type = helper.np_dtype_to_tensor_dtype(np.dtype(kind.dtype))
            input_types[name] = helper.make_tensor_type_proto(elem_type, kind.shape)
    schema = onnx.defs.get_schema(node.op_type, graph.opset, "")
    try:
        inferred = shape_inference.infer_node_outputs(
            schema, node, input_types, input_data,
            opset_imports=[helper.make_opsetid("", graph.opset)],
        )  # fmt: skip
    except (shape_inference.InferenceError, ValueError, RuntimeError) as error:
        raise ModelError(
            f"The shapes at node {node_name(node)!r} ({node.op_type}) do not fit together: "
            f"{_first_line(error)}",
            remedy="check the given input shapes, or export the model again",
        ) from error
    types: dict[str, TensorType] = {}
    for name in filter(None, node.output):
        kind_or_reason = _static_type(inferred.get(name))
        if node.op_type in _WINDOWED:
            kind_or_reason = _windowed(node, input_types)
        if node.op_type == "Slice":
            kind_or_reason = _sliced(node, graph, input_types)
        if isinstance(kind_or_reason, str) and node.op_type in _LIKE_FIRST_INPUT:
            kind_or_reason = _static_type(input_types[node.input[0]])
        if isinstance(kind_or_reason, str):
            return types, kind_or_reason
        types[name] = kind_or_reason
    return types, None


def _windowed(
    node: onnx.NodeProto, input_types: Mapping[str, onnx.TypeProto]
) -> TensorType | str:
    """Return the type of a pool or transposed convolution, or why there is none."""
    data = _static_type(input_types[node.input[0]])
    assert isinstance(data, TensorType)
    attributes, sizes = node_attributes(node), data.shape[2:]
    try:
        if node.op_type in POOLS:
            extents = pool_extents(
                node.op_type, attributes, tuple(attributes("kernel_shape", ())), sizes
            )
            channels = data.shape[1]
        else:
            weight = _static_type(input_types[node.input[1]])
            assert isinstance(weight, TensorType)
            extents = transposed_extents(attributes, weight.shape[2:], sizes)
            channels = weight.shape[1] * attributes("group", 1)
    except WindowError as error:
        return str(error)
    if min(extents, default=1) < 1:
        return f"its result would have the extents {list(extents)}: the kernel is too large"
    return TensorType((data.shape[0], channels, *extents), data.dtype)


def _sliced(
    node: onnx.NodeProto, graph: Graph, input_types: Mapping[str, onnx.TypeProto]
) -> TensorType | str:
    """Return the type of a slice: ONNX's inference gives up on what has to be clamped."""
    data = _static_type(input_types[node.input[0]])
    assert isinstance(data, TensorType)
    ranges = slice_ranges(node, graph.constants, data.shape, graph.opset)
    if isinstance(ranges, str):
        return ranges
    shape = [len(ranges.get(axis, range(extent))) for axis, extent in enumerate(data.shape)]
    return TensorType(tuple(shape), data.dtype)


def _static_type(inferred: onnx.TypeProto | None) -> TensorType | str:
    """Return the type if it is a dense tensor with a static shape, else why it is not."""
    if inferred is None:
        return "ONNX's shape inference does not know the shape of its result"
    if inferred.WhichOneof("value") != "tensor_type":
        return "its result is not a dense tensor"
    tensor = inferred.tensor_type
    if tensor.elem_type not in DTYPES:
        return f"its result has the element type {dtype_name(tensor.elem_type)}"
    if not tensor.HasField("shape") or not all(d.HasField("dim_value") for d in tensor.shape.dim):
        return "the shape of its result depends on values that are known only at run time"
    shape = tuple(d.dim_value for d in tensor.shape.dim)
    if min(shape, default=0) < 0:
        return f"its result would have the shape {list(shape)}"
    return TensorType(shape, DTYPES[tensor.elem_type])


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
