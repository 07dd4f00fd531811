"""Type inference and constant folding in one walk over the nodes."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from copy import deepcopy

import numpy as np
import onnx
from onnx import helper, numpy_helper, shape_inference
from onnx.reference import ReferenceEvaluator

from ..errors import InputError, ModelError, OperatorError, ShapeError, UnsupportedModelError
from ..ir.call_checks import CallCheck
from ..ir.limits import MOST_ELEMENTS, check_size
from ..ir.operator import DOMAIN
from ..ir.operators import OPERATORS
from ..ir.tensors import TensorType
from ..ops.onnx_form import attributes_of
from .converter import CONVERTERS, InvalidNode, Refusal
from .dynamic import RunTimeSizes
from .expansion import expanded
from .graph import (
    RUN_LOOP,
    Graph,
    invalid,
    node_attributes,
    node_name,
    unknown_operator,
)
from .node_types import check_types, types_opset
from .ops import RESULT_TYPES
from .ops.shaping import slice_ranges
from .source import DTYPES, constant_value, dtype_name
from .values import Values

#: Largest constants (shapes, axes, scales), in elements, whose values ONNX's shape inference gets.
_SHAPE_DATA_ELEMENTS = 1024

#: Largest operands and results, in elements, that are folded here; larger ones are computed at run
#: time, or folded by TVM.
_FOLD_LIMIT_ELEMENTS = 16 << 20

#: Operators with a random result.
_RANDOM = {
    "Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform",
    "RandomUniformLike",
}  # fmt: skip
#: Operators that ONNX's reference evaluator computes correctly: data movement and arithmetic.  For
#: others it ignores attributes and old definitions (Softmax before set 13, lengths of LSTM, padding
#: of MaxPool), so they are not folded here.
_EVALUATED = {
    "Abs", "Acos", "Acosh", "Add", "And", "ArgMax", "ArgMin", "Asin", "Asinh", "Atan", "Atanh",
    "BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "Cast", "CastLike", "Ceil",
    "CenterCropPad", "Clip", "Compress", "Concat", "Cos", "Cosh", "CumSum", "DepthToSpace",
    "DequantizeLinear", "Div", "Einsum", "Equal", "Erf", "Exp", "Expand", "Flatten", "Floor",
    "Gather", "GatherElements", "GatherND", "Gemm", "Greater", "GreaterOrEqual", "Identity",
    "IsInf", "IsNaN", "Less", "LessOrEqual", "Log", "MatMul", "Max", "Mean", "Min", "Mod", "Mul",
    "Neg", "NonZero", "Not", "OneHot", "Or", "Pow", "QuantizeLinear", "Reciprocal", "ReduceL1",
    "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "Relu",
    "Reshape", "ReverseSequence", "Round", "Scatter", "ScatterElements", "ScatterND", "Sigmoid",
    "Sign", "Sin", "Sinh", "Slice", "SpaceToDepth", "Split", "Sqrt", "Squeeze", "Sub", "Sum", "Tan",
    "Tanh", "Tile", "TopK", "Transpose", "Trilu", "Unsqueeze", "Where", "Xor",
}  # fmt: skip
#: Operators that depend only on the shape and type of their input.
_OF_SHAPES = ("EyeLike", "Shape", "Size")


def propagate(
    graph: Graph, bounds: Mapping[str, int] | None = None, *, has_machine: bool = True
) -> None:
    """Infer static types, fold constants and drop nodes without effect, in place.

    Control flow and sequences are expanded to other nodes (:mod:`.expansion`), as are nodes whose
    results have sizes known only at run time (:mod:`.dynamic`).  Afterwards ``graph.nodes`` holds
    only nodes that must run, and ``graph.problems`` nodes that cannot be compiled: they have
    unknown operators or domains, or a result whose shape depends on run-time values without a rule
    for that.  ``bounds`` limits run-time sizes, by node or value, if the worst case is larger.
    ``has_machine`` allows loops to run in the virtual machine (:mod:`.expanders.vm_loops`).

    Raises ``ModelError`` if ONNX's shape inference finds a contradiction, such as shapes that do
    not fit; ``UnsupportedModelError`` if an output is a sequence.
    """
    _Walk(graph, bounds or {}, has_machine).run()


class _Walk:
    """The walk over a graph's nodes."""

    def __init__(self, graph: Graph, bounds: Mapping[str, int], has_machine: bool):
        self.graph = graph
        self.kept: list[onnx.NodeProto] = []
        self.values = Values(graph, has_machine=has_machine)
        self.sizes = RunTimeSizes(graph, self.take, bounds)
        self.values.sizes = self.sizes

    def run(self) -> None:
        """Visit all nodes in order."""
        graph, values = self.graph, self.values
        for original in expanded(graph.nodes, values):
            graph.failed_in = node_name(original)
            self._visit(_with_inputs(original, values.aliases))
        graph.failed_in = None
        graph.nodes = self.kept
        outputs = [values.resolve(name) for name in graph.outputs]
        for name, value in zip(graph.outputs, outputs, strict=True):
            if value in values.sequences:
                raise UnsupportedModelError(
                    f"The output {name!r} is a sequence or an optional value, only dense tensors "
                    "can be compiled.",
                    remedy="Let the model return its tensors, by SequenceAt or ConcatFromSequence.",
                )
        graph.outputs = outputs
        if not graph.problems:
            self.sizes.finish()
        graph.nodes = self.kept
        graph.drop_unused_nodes()
        run = {node_attributes(node)["loop"] for node in graph.nodes if node.op_type == RUN_LOOP}
        graph.loops = {name: body for name, body in graph.loops.items() if name in run}

    def _visit(self, node: onnx.NodeProto) -> None:
        """Infer the types of a node's results, or fold them."""
        graph, values = self.graph, self.values
        inputs = [name for name in node.input if name]
        reason = unknown_operator(node, graph.opset)
        if reason is not None:
            graph.refuse(node, reason)
            self.kept.append(node)
        elif _is_identity(node, graph, values.used) and not self._is_cut(node):
            values.aliases[node.output[0]] = node.input[0]
        elif any(name in values.sequences for name in inputs):
            raise invalid(node, "one of its inputs is a sequence, expected a tensor")
        elif not all(map(values.is_known, inputs)):
            # A node that it depends on is refused; it is kept, as it may have problems of its own.
            self.kept.append(node)
        else:
            check_types(node, graph)
            try:
                if not self.sizes.visit(node):
                    self.take(node)
            except Refusal as refusal:
                graph.refuse(node, str(refusal))
                self.kept.append(node)
            values.aliases |= self.sizes.cut(node)

    def _is_cut(self, node: onnx.NodeProto) -> bool:
        """Return whether the user gave a bound for the result of an Identity."""
        return node.input[0] in self.sizes.bounded and self.sizes.is_limited(node)

    def take(self, node: onnx.NodeProto, given: Sequence[TensorType] | None = None) -> None:
        """Keep a node with the inferred or given types of its results, or fold it."""
        graph = self.graph
        if node.op_type == "DequantizeLinear":
            graph.dequantized[node.output[0]] = node
        types: dict[str, TensorType]
        if given is None:
            types, reason = _infer(node, graph)
        else:
            types, reason = dict(zip(node.output, given, strict=True)), None
        # Nothing needs to run for results without elements.
        constants = _fold(node, graph, types) or {
            name: np.zeros(kind.shape, kind.dtype)
            for name, kind in types.items()
            if kind.elements == 0
        }
        graph.constants.update(constants)
        graph.origins |= dict.fromkeys(constants, graph.initializers(node.input))
        if constants and all(name in constants for name in node.output if name):
            return
        graph.types.update({n: kind for n, kind in types.items() if n not in constants})
        if reason is not None:
            graph.refuse(node, reason)
        self.kept.append(node)


def _with_inputs(node: onnx.NodeProto, aliases: Mapping[str, str]) -> onnx.NodeProto:
    if not any(name in aliases for name in node.input):
        return node
    renamed = deepcopy(node)
    for index, name in enumerate(renamed.input):
        renamed.input[index] = aliases.get(name, name)
    return renamed


def _is_identity(node: onnx.NodeProto, graph: Graph, used: Container[str]) -> bool:
    """Return whether a node only returns its first input."""
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

    The second value is the reason if a type is not static.

    Raises ``ModelError`` if the shapes of the inputs do not fit together; ``ShapeError`` if a
    result is too large for any device, or for the compiling machine.
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
    """Return the same as `_infer` for an operator of ONNX's own domain."""
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
    schema = onnx.defs.get_schema(node.op_type, types_opset(node, graph.opset), "")
    if not schema.has_type_and_shape_inference_function:
        # GreaterOrEqual and LessOrEqual have no inference before operator set 16.
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
            found = inferred.get(name)
            kind = own_rule(node, graph) if own_rule is not None else None
            if kind is None:
                types[name] = _static_type(found)
                continue
            types[name] = kind
            if name != node.output[0] and found is not None:  # indices of the same shape
                types[name] = TensorType(kind.shape, DTYPES[found.tensor_type.elem_type])
    except InvalidNode as broken:
        raise invalid(node, str(broken)) from None
    except Refusal as refusal:
        return types, str(refusal)
    return types, None


def _check_counts(node: onnx.NodeProto, graph: Graph) -> None:
    """Refuse attributes and inputs for which ONNX infers a wrong shape or runs out of memory."""
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
    """Return an inferred type; refuse the node unless it is a dense tensor of static shape."""
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
    """Return the types of a custom operator's results, after its check of constant inputs."""
    operator = OPERATORS[node.op_type]
    given = [graph.type_of(name) if name else None for name in node.input]
    try:
        attributes = attributes_of(node, operator)
        types = operator.result_types(given, attributes)
        if operator.check is not None:
            arrays = [_check_argument(graph, *pair) for pair in zip(node.input, given, strict=True)]
            operator.check([*arrays, *[None] * (len(operator.inputs) - len(given))], attributes)
    except (InputError, OperatorError, ShapeError) as error:
        raise ModelError(
            f"Node {node_name(node)!r} is not valid: {error.message}", remedy=error.remedy
        ) from error
    return {name: kind for name, kind in zip(node.output, types, strict=False) if name}


def _check_argument(graph: Graph, name: str, kind: TensorType | None) -> np.ndarray | None:
    """Return an argument of a custom operator's check: a constant, or NaNs for other floats."""
    if name in graph.constants or kind is None:
        return graph.constants.get(name)
    floating = np.dtype(kind.dtype).kind == "f"
    return np.broadcast_to(np.array(np.nan, kind.dtype), kind.shape) if floating else None


def call_checks(graph: Graph) -> tuple[CallCheck, ...]:
    """Return the checks of custom operators to run at each call, on integers that are inputs."""
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
    """Return a node's results if its inputs are constant or it depends only on a shape.

    Returns ``None`` if the node must run.
    """
    if node.op_type == "Constant":
        value = constant_value(node)
        return None if value is None else {node.output[0]: value}
    sizes = [kind.elements for kind in result_types.values()]
    if node.op_type in _OF_SHAPES:
        kind = graph.type_of(node.input[0])
        inputs = {node.input[0]: np.broadcast_to(np.zeros((), kind.dtype), kind.shape)}
    elif not (_is_evaluated(node) and all(name in graph.constants for name in node.input if name)):
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


def _is_evaluated(node: onnx.NodeProto) -> bool:
    if node.op_type in _RANDOM:
        return False
    # Operators without a converter can only be computed here.
    return bool(node.domain) or node.op_type in _EVALUATED or node.op_type not in CONVERTERS


def evaluated(
    node: onnx.NodeProto, inputs: Mapping[str, np.ndarray], opset: int
) -> dict[str, np.ndarray]:
    """Compute one node with a custom operator's reference or ONNX's reference evaluator."""
    if node.domain:
        operator = OPERATORS[node.op_type]
        arrays = [inputs[name] if name else None for name in node.input]
        results = operator.evaluate(arrays, attributes_of(node, operator))
        return {name: array for name, array in zip(node.output, results, strict=False) if name}
    if node.op_type == "Slice":
        # NumPy's result is empty if a slice with a negative step starts before the first element.
        array = inputs[node.input[0]]
        for axis, places in slice_ranges(node, array.shape, opset, inputs).items():
            array = array.take(places, axis)
        return {node.output[0]: array}
    names = [name for name in node.output if name]
    graph = helper.make_graph(
        [node], "fold",
        [onnx.ValueInfoProto(name=name) for name in inputs],
        [onnx.ValueInfoProto(name=name) for name in names],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", types_opset(node, opset))]
    model = helper.make_model(graph, opset_imports=opsets)
    with np.errstate(all="ignore"):
        values = ReferenceEvaluator(model).run(None, dict(inputs))
    return dict(zip(names, map(np.asarray, values), strict=True))
