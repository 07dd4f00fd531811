"""One walk over the nodes that gives every value a type and computes constants."""

from __future__ import annotations

from collections.abc import Container, Mapping
from copy import deepcopy

import numpy as np
import onnx
from onnx import helper, numpy_helper, shape_inference
from onnx.reference import ReferenceEvaluator

from ..errors import InputError, ModelError, OperatorError, ShapeError
from ..ir.limits import MOST_ELEMENTS, check_size
from ..ir.operator import DOMAIN
from ..ir.operators import OPERATORS
from ..ir.tensors import TensorType
from ..module.call_checks import CallCheck
from ..ops.onnx_form import attributes_of
from .converter import InvalidNode, Refusal
from .graph import (
    DEFAULT_DOMAINS,
    Graph,
    invalid,
    node_attributes,
    node_name,
    unknown_operator,
)
from .ops import RESULT_TYPES
from .source import DTYPES, constant_value, dtype_name

#: Constants up to this size are shown to ONNX's shape inference (shapes, axes, scales).
_SHAPE_DATA_ELEMENTS = 1024

#: Results with more elements than this are computed at run time, or by TVM, instead.
_FOLD_LIMIT_ELEMENTS = 16 << 20

#: Operators with another result at every call.
_RANDOM = {
    "Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform",
    "RandomUniformLike",
}  # fmt: skip
#: Operators of whose input only the shape and type count.
_OF_SHAPES = ("EyeLike", "Shape", "Size")


def propagate(graph: Graph) -> None:
    """Infer static types, fold constants and drop nodes without effect, in place.

    Afterwards ``graph.nodes`` holds only nodes that have to run, and
    ``graph.problems`` those that never can: of unknown operators or domains, with nested
    graphs, or with a result whose shape depends on values at run time.

    Raises ``ModelError`` if ONNX's shape inference finds a contradiction, such as shapes that do
    not fit.
    """
    kept: list[onnx.NodeProto] = []
    aliases: dict[str, str] = {}
    used = graph.consumers()
    for original in graph.nodes:
        node = _with_inputs(original, aliases)
        reason = unknown_operator(node, graph.opset)
        if reason is not None:
            graph.refuse(node, reason)
            kept.append(node)
        elif _is_identity(node, graph, used):
            aliases[node.output[0]] = node.input[0]
        elif not all(n in graph.types or n in graph.constants for n in node.input if n):
            kept.append(node)  # something before it is refused; it may have problems of its own
        else:
            if node.op_type == "DequantizeLinear":
                graph.dequantized[node.output[0]] = node
            types, reason = _infer(node, graph)
            # Nothing needs to run for results without elements.
            values = _fold(node, graph, types) or {
                name: np.zeros(kind.shape, kind.dtype)
                for name, kind in types.items()
                if kind.elements == 0
            }
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
    if node.domain == "" and not any(name in aliases for name in node.input):
        return node
    renamed = deepcopy(node)
    if node.domain in DEFAULT_DOMAINS:
        renamed.ClearField("domain")
    for index, name in enumerate(renamed.input):
        renamed.input[index] = aliases.get(name, name)
    return renamed


def _is_identity(node: onnx.NodeProto, graph: Graph, used: Container[str]) -> bool:
    """Tell whether the node only passes its first input on."""
    if node.op_type == "Identity":
        return True
    if node.op_type != "Dropout" or any(name in used for name in node.output[1:]):
        return False
    if len(node.input) < 3 or not node.input[2]:
        return True
    training = graph.constants.get(node.input[2])
    return training is not None and not training.any()


def _infer(node: onnx.NodeProto, graph: Graph) -> tuple[dict[str, TensorType], str | None]:
    """Return the static types of a node's results, as far as they are known.

    The second value is the reason where one is not static.

    Raises ``ModelError`` if the shapes of the inputs do not fit together; ``ShapeError`` if a
    result is too large for any device, or for this machine.
    """
    types, reason = (_infer_custom(node, graph), None) if node.domain else _infer_own(node, graph)
    for kind in types.values():
        check_size(
            f"The result of node {node_name(node)!r} ({node.op_type})", kind,
            "Check the given input shapes and the node's attributes, or cut the model before it "
            "(onnx.utils.extract_model).",
        )  # fmt: skip
    return types, reason


def _infer_own(node: onnx.NodeProto, graph: Graph) -> tuple[dict[str, TensorType], str | None]:
    """Return the same for an operator of ONNX's own."""
    _check_counts(node, graph)
    inputs = {name: graph.type_of(name) for name in filter(None, node.input)}
    input_types = {
        name: helper.make_tensor_type_proto(
            helper.np_dtype_to_tensor_dtype(np.dtype(kind.dtype)), kind.shape
        )
        for name, kind in inputs.items()
    }
    input_data = {
        name: numpy_helper.from_array(np.array(graph.constants[name]), name)
        for name, kind in inputs.items()
        if name in graph.constants and kind.elements <= _SHAPE_DATA_ELEMENTS
    }
    schema = onnx.defs.get_schema(node.op_type, graph.opset, "")
    if not schema.has_type_and_shape_inference_function:
        # GreaterOrEqual and LessOrEqual had none before operator set 16.
        schema = onnx.defs.get_schema(node.op_type)
    opsets = [helper.make_opsetid("", graph.opset)]
    try:
        inferred = shape_inference.infer_node_outputs(
            schema, node, input_types, input_data, opset_imports=opsets
        )
    except (
        onnx.checker.ValidationError, shape_inference.InferenceError,
        ValueError, RuntimeError, MemoryError,
    ) as error:  # fmt: skip
        first, name = str(error).strip().partition("\n")[0], node_name(node)
        if isinstance(error, onnx.checker.ValidationError):
            raise ModelError(
                f"Node {name!r} is not a valid {node.op_type}: {first}",
                remedy="Export the model again.",
            ) from error
        raise ModelError(
            f"The shapes at node {name!r} ({node.op_type}) do not fit together: {first}",
            remedy="Check the given input shapes, or export the model again.",
        ) from error
    own_rule = RESULT_TYPES.get(node.op_type)
    types: dict[str, TensorType] = {}
    try:
        for name in filter(None, node.output):
            types[name] = own_rule(node, graph) if own_rule else _static_type(inferred.get(name))
    except InvalidNode as broken:
        raise invalid(node, str(broken)) from None
    except Refusal as refusal:
        return types, str(refusal)
    return types, None


def _check_counts(node: onnx.NodeProto, graph: Graph) -> None:
    """Refuse numbers of which ONNX's inference makes a wrong shape, or too long a list."""
    numbers = [graph.constants.get(name) for name in node.input]
    if node.op_type == "Split":
        parts = node_attributes(node).get("num_outputs", len(node.output))
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


def _static_type(inferred: onnx.TypeProto | None) -> TensorType:
    """Return the type if it is a dense tensor with a static shape, else refuse the node."""
    if inferred is None:
        raise Refusal("ONNX's shape inference does not know the shape of its result")
    if inferred.WhichOneof("value") != "tensor_type":
        raise Refusal("its result is not a dense tensor")
    tensor = inferred.tensor_type
    if tensor.elem_type not in DTYPES:
        raise Refusal(f"its result has the element type {dtype_name(tensor.elem_type)}")
    if not tensor.HasField("shape") or not all(d.HasField("dim_value") for d in tensor.shape.dim):
        raise Refusal("the shape of its result depends on values that are known only at run time")
    shape = tuple(d.dim_value for d in tensor.shape.dim)
    if min(shape, default=0) < 0:
        raise Refusal(f"its result would have the shape {list(shape)}")
    return TensorType(shape, DTYPES[tensor.elem_type])


def _infer_custom(node: onnx.NodeProto, graph: Graph) -> dict[str, TensorType]:
    """Return the types of a custom operator's results; look at constants that it reads."""
    operator = OPERATORS[node.op_type]
    given = [graph.type_of(name) if name else None for name in node.input]
    try:
        attributes = attributes_of(node, operator)
        types = operator.result_types(given, attributes)
        if operator.check is not None:
            arrays = [_looked_at(graph, *pair) for pair in zip(node.input, given, strict=True)]
            operator.check([*arrays, *[None] * (len(operator.inputs) - len(given))], attributes)
    except (InputError, OperatorError, ShapeError) as error:
        raise ModelError(
            f"Node {node_name(node)!r} is not valid: {error.message}", remedy=error.remedy
        ) from error
    return {name: kind for name, kind in zip(node.output, types, strict=False) if name}


def _looked_at(graph: Graph, name: str, kind: TensorType | None) -> np.ndarray | None:
    """Return an argument of a custom operator's check: constants, and of other floats the shape."""
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
        attributes = attributes_of(node, operator)
        check = CallCheck(node_name(node), node.op_type, attributes, tuple(operands))
        if check.inputs:
            found.append(check)
    return tuple(found)


def _fold(
    node: onnx.NodeProto, graph: Graph, result_types: Mapping[str, TensorType]
) -> dict[str, np.ndarray] | None:
    """Return a node's results, if its inputs are constants or it only asks for a shape.

    ``None`` if the node has to run.
    """
    if node.op_type == "Constant":
        value = constant_value(node)
        return None if value is None else {node.output[0]: value}
    sizes = [kind.elements for kind in result_types.values()]
    if node.op_type in _OF_SHAPES:
        kind = graph.type_of(node.input[0])
        inputs = {node.input[0]: np.broadcast_to(np.zeros((), kind.dtype), kind.shape)}
    elif node.op_type in _RANDOM or not all(n in graph.constants for n in node.input if n):
        return None
    else:
        inputs = {name: graph.constants[name] for name in node.input if name}
        sizes += [array.size for array in inputs.values()]
        if any(array.nbytes >= graph.large_weight_bytes for array in inputs.values()):
            return None
    if max(sizes, default=0) > _FOLD_LIMIT_ELEMENTS:
        return None
    try:
        results = evaluated(node, inputs, graph.opset)
    except Exception:  # noqa: BLE001 (of any kind, NumPy's or a user's: the node runs as it is)
        return None
    numeric = node.domain or all(array.dtype.kind in "fiub" for array in results.values())
    return results if numeric else None


def evaluated(
    node: onnx.NodeProto, inputs: Mapping[str, np.ndarray], opset: int
) -> dict[str, np.ndarray]:
    """Run one node: a custom operator's reference, else ONNX's reference evaluator."""
    if node.domain:
        operator = OPERATORS[node.op_type]
        arrays = [inputs[name] if name else None for name in node.input]
        results = operator.evaluate(arrays, attributes_of(node, operator))
        return {name: array for name, array in zip(node.output, results, strict=False) if name}
    names = [name for name in node.output if name]
    graph = helper.make_graph(
        [node], "fold",
        [onnx.ValueInfoProto(name=name) for name in inputs],
        [onnx.ValueInfoProto(name=name) for name in names],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    with np.errstate(all="ignore"):
        values = ReferenceEvaluator(model).run(None, dict(inputs))
    return dict(zip(names, map(np.asarray, values), strict=True))
