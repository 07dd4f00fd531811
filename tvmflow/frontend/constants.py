"""Values known before the model runs: Constant nodes, static shapes, folded operators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper
from onnx.reference import ReferenceEvaluator

from ..ir.operators import OPERATORS
from ..ir.tensors import TensorType
from ..ops.onnx_form import attributes_of
from .graph import Graph
from .source import Source
from .weights import to_array

#: Results with more elements than this are computed at run time, or by TVM, instead.
FOLD_LIMIT_ELEMENTS = 16 << 20

#: Operators with another result at every call.
_RANDOM = {
    "Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform",
    "RandomUniformLike",
}  # fmt: skip

_NUMPY_TYPES = {
    "value_float": np.float32, "value_floats": np.float32,
    "value_int": np.int64, "value_ints": np.int64,
}  # fmt: skip


def constant_value(node: onnx.NodeProto, source: Source | None = None) -> np.ndarray | None:
    """Return the value of a Constant node, ``None`` if it is no dense numeric tensor.

    Raises
    ------
    ModelError
        If its tensor is damaged.
    """
    if len(node.attribute) != 1:
        return None
    attribute = node.attribute[0]
    if attribute.name == "value":
        return to_array(attribute.t, source)
    if attribute.name in _NUMPY_TYPES:
        value = helper.get_attribute_value(attribute)
        return np.array(value, _NUMPY_TYPES[attribute.name])
    return None


def fold(
    node: onnx.NodeProto, graph: Graph, result_types: Mapping[str, TensorType]
) -> dict[str, np.ndarray] | None:
    """Compute a node's results if its inputs are constants, or it only asks for a shape.

    Parameters
    ----------
    node
        A node of the default domain or a custom operator, without nested graphs.
    graph
        Gives constants and types of the node's inputs.
    result_types
        Types of the node's results, where they are known.

    Returns
    -------
    dict or None
        Arrays by result name; ``None`` if the node has to run.
    """
    if node.op_type in ("Shape", "Size"):
        return _shape_of(node, graph)
    if node.op_type == "Constant":
        value = constant_value(node)
        return None if value is None else {node.output[0]: value}
    inputs = _known_inputs(node, graph)
    if node.op_type in _RANDOM or inputs is None:
        return None
    sizes = [array.size for array in inputs.values()]
    sizes += [kind.elements for kind in result_types.values()]
    if max(sizes, default=0) > FOLD_LIMIT_ELEMENTS:
        return None
    if any(array.nbytes >= graph.large_weight_bytes for array in inputs.values()):
        return None
    if node.domain:
        return _evaluate_custom(node, inputs)
    return _evaluate(node, inputs, graph.opset)


def _known_inputs(node: onnx.NodeProto, graph: Graph) -> dict[str, np.ndarray] | None:
    """Return the values of all inputs, ``None`` if one is computed at run time."""
    if node.op_type == "EyeLike" and node.input[0] in graph.types:
        kind = graph.types[node.input[0]]  # only the shape and type of its input count
        return {node.input[0]: np.broadcast_to(np.zeros((), kind.dtype), kind.shape)}
    if not all(name in graph.constants for name in node.input if name):
        return None
    return {name: graph.constants[name] for name in node.input if name}


def _shape_of(node: onnx.NodeProto, graph: Graph) -> dict[str, np.ndarray] | None:
    """Return the result of Shape or Size, whose input need only have a known type."""
    name = node.input[0]
    shape: tuple[int, ...]
    if name in graph.constants:
        shape = graph.constants[name].shape
    elif name in graph.types:
        shape = graph.types[name].shape
    else:
        return None
    if node.op_type == "Size":
        return {node.output[0]: np.array(np.prod(shape, dtype=np.int64))}
    attributes = {a.name: a.i for a in node.attribute}
    # Python's slices count from the end and clamp in the same way.
    part = shape[attributes.get("start", 0) : attributes.get("end")]
    return {node.output[0]: np.array(part, np.int64)}


def _evaluate(
    node: onnx.NodeProto, inputs: Mapping[str, np.ndarray], opset: int
) -> dict[str, np.ndarray] | None:
    """Run one node in ONNX's reference evaluator; ``None`` if it cannot."""
    names = [name for name in node.output if name]
    untyped: Any = onnx.TypeProto()
    graph = helper.make_graph(
        [node], "fold",
        [helper.make_value_info(name, untyped) for name in inputs],
        [helper.make_value_info(name, untyped) for name in names],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    try:
        with np.errstate(all="ignore"):
            values = ReferenceEvaluator(model).run(None, dict(inputs))
    except Exception:  # noqa: BLE001 (NumPy's errors, of any kind: the node runs as it is)
        return None
    arrays = [np.asarray(value) for value in values]
    if any(array.dtype.kind not in "fiub" for array in arrays):
        return None
    return dict(zip(names, arrays, strict=True))


def _evaluate_custom(
    node: onnx.NodeProto, inputs: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray] | None:
    """Compute a custom operator by its reference; ``None`` if that fails."""
    operator = OPERATORS[node.op_type]
    try:
        results = operator.evaluate(
            [inputs[name] if name else None for name in node.input], attributes_of(node, operator)
        )
    except Exception:  # noqa: BLE001 (a reference of a user: the node runs as it is)
        return None
    return {name: array for name, array in zip(node.output, results, strict=False) if name}
