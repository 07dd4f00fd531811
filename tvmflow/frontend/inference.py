"""The static type of a node's results, by ONNX's shape inference where that suffices."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import helper, numpy_helper, shape_inference

from ..errors import InputError, ModelError, OperatorError, ShapeError
from ..ir.limits import MOST_ELEMENTS, check_size
from ..ir.operator import DOMAIN
from ..ir.operators import OPERATORS
from ..ir.tensors import TensorType
from ..module.call_checks import CallCheck
from ..ops.onnx_form import attributes_of
from .graph import Graph, node_name
from .slices import slice_ranges
from .weights import DTYPES, dtype_name
from .windows import POOLS, WindowError, node_attributes, pool_extents, transposed_extents

#: Constants up to this size are shown to ONNX's shape inference (shapes, axes, scales).
_SHAPE_DATA_ELEMENTS = 1024

#: Operators of which ONNX's inference knows only the rank, but whose specification says more.
_LIKE_FIRST_INPUT = ("GroupNormalization", "MeanVarianceNormalization")

#: Operators whose extents are worked out here instead.
_WINDOWED = (*POOLS, "ConvTranspose")


def infer(node: onnx.NodeProto, graph: Graph) -> tuple[dict[str, TensorType], str | None]:
    """Return the static types of a node's results, and what stands against them.

    Parameters
    ----------
    node
        A node of the default domain or a custom operator; the types of its inputs are known.
    graph
        Gives them.

    Returns
    -------
    tuple
        Types by name, as far as they are known; the reason where one is not static.

    Raises
    ------
    ModelError
        If the shapes of the inputs do not fit together.
    ShapeError
        If a result is too large for any device, or for this machine.
    """
    types, reason = (_custom(node, graph), None) if node.domain else _default(node, graph)
    for kind in types.values():
        check_size(
            f"The result of node {node_name(node)!r} ({node.op_type})", kind,
            "Check the given input shapes and the node's attributes, or cut the model before it "
            "(onnx.utils.extract_model).",
        )  # fmt: skip
    return types, reason


def _default(node: onnx.NodeProto, graph: Graph) -> tuple[dict[str, TensorType], str | None]:
    """Return the same for an operator of ONNX's own."""
    _check_counts(node, graph)
    input_types: dict[str, onnx.TypeProto] = {}
    input_data: dict[str, onnx.TensorProto] = {}
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
    if not schema.has_type_and_shape_inference_function:
        # GreaterOrEqual and LessOrEqual had none before operator set 16.
        schema = onnx.defs.get_schema(node.op_type)
    try:
        inferred = shape_inference.infer_node_outputs(
            schema, node, input_types, input_data,
            opset_imports=[helper.make_opsetid("", graph.opset)],
        )  # fmt: skip
    except onnx.checker.ValidationError as error:
        raise ModelError(
            f"Node {node_name(node)!r} is not a valid {node.op_type}: {_first_line(error)}",
            remedy="Export the model again.",
        ) from error
    except (shape_inference.InferenceError, ValueError, RuntimeError, MemoryError) as error:
        raise ModelError(
            f"The shapes at node {node_name(node)!r} ({node.op_type}) do not fit together: "
            f"{_first_line(error)}",
            remedy="Check the given input shapes, or export the model again.",
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


def _check_counts(node: onnx.NodeProto, graph: Graph) -> None:
    """Refuse numbers of which ONNX's inference makes a wrong shape, or too long a list."""
    numbers = [graph.constants.get(name) for name in node.input]
    if node.op_type == "Split":
        parts = next((a.i for a in node.attribute if a.name == "num_outputs"), len(node.output))
        if parts != len(node.output):
            raise ModelError(
                f"Node {node_name(node)!r} (Split) has {len(node.output)} results, but its "
                f"attribute num_outputs is {parts}.",
                remedy="Export the model again.",
            )
    if node.op_type == "Range" and all(n is not None and n.size == 1 for n in numbers):
        start, limit, delta = (float(np.asarray(n).item()) for n in numbers)
        with np.errstate(all="ignore"):
            count = np.float64(limit - start) / np.float64(delta)
        if not count <= MOST_ELEMENTS:  # NaN, too
            raise ShapeError(
                f"The result of node {node_name(node)!r} (Range) has no shape: from {start:g} to "
                f"{limit:g} in steps of {delta:g} are not at most {MOST_ELEMENTS} numbers, which "
                "is what kernels count.",
                remedy="Check the node's inputs.",
            )


def _custom(node: onnx.NodeProto, graph: Graph) -> dict[str, TensorType]:
    """Return the types of a custom operator's results; look at constants that it reads."""
    operator = OPERATORS[node.op_type]
    given = [graph.type_of(name) if name else None for name in node.input]
    try:
        attributes = attributes_of(node, operator)
        types = operator.result_types(given, attributes)
        if operator.check is not None:
            kinds = [*given, *[None] * (len(operator.inputs) - len(given))]
            names = [*node.input, *[""] * (len(operator.inputs) - len(given))]
            arrays = [_known(graph, *pair) for pair in zip(names, kinds, strict=True)]
            operator.check(arrays, attributes)
    except (InputError, OperatorError, ShapeError) as error:
        raise ModelError(
            f"Node {node_name(node)!r} is not valid: {error.message}", remedy=error.remedy
        ) from error
    return {name: kind for name, kind in zip(node.output, types, strict=False) if name}


def _known(graph: Graph, name: str, kind: TensorType | None) -> np.ndarray | None:
    """Return what a custom operator's check gets: constants, and of other floats the shape."""
    if name in graph.constants or kind is None:
        return graph.constants.get(name)
    floating = np.dtype(kind.dtype).kind == "f"
    return np.broadcast_to(np.array(np.nan, kind.dtype), kind.shape) if floating else None


def call_checks(graph: Graph) -> tuple[CallCheck, ...]:
    """Return what custom operators have to look at, at each call: integers that are inputs."""
    inputs = {info.name for info in graph.inputs} - graph.constants.keys()
    found = []
    for node in graph.nodes:
        if node.domain != DOMAIN or (operator := OPERATORS[node.op_type]).check is None:
            continue
        operands: list[str | TensorType | None] = [None] * len(operator.inputs)
        for index, name in enumerate(node.input):
            kind = graph.type_of(name) if name else None
            looked_at = kind is not None and np.dtype(kind.dtype).kind != "f"
            operands[index] = name if looked_at and name in inputs else kind
        check = CallCheck(
            node_name(node), node.op_type, attributes_of(node, operator), tuple(operands)
        )
        if check.inputs:
            found.append(check)
    return tuple(found)


def _windowed(node: onnx.NodeProto, input_types: Mapping[str, onnx.TypeProto]) -> TensorType | str:
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
