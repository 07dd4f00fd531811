"""One walk over the nodes that gives every value a type and computes what is constant."""

from __future__ import annotations

from collections.abc import Container, Mapping

import numpy as np
import onnx

from ..ir.operator import DOMAIN
from ..ir.operators import OPERATORS
from ..ir.tensors import TensorType
from .constants import fold
from .graph import Graph, has_nested_graph
from .inference import infer
from .prepare import DEFAULT_DOMAINS


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
    used = graph.consumers()
    for original in graph.nodes:
        node = _with_inputs(original, aliases)
        reason = _structural_reason(node, graph.opset)
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
            types, reason = infer(node, graph)
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
    if node.domain == DOMAIN and node.op_type not in OPERATORS:
        return f"no such operator is registered (`ops=FILE`), there are {', '.join(OPERATORS)}"
    if node.domain not in ("", DOMAIN):
        return f"only ONNX's own operators and those of {DOMAIN} are supported"
    if has_nested_graph(node):
        return "nested graphs (branches and loop bodies) are not supported"
    if not node.domain and not onnx.defs.has(node.op_type, opset, ""):
        return f"operator set {opset} has no such operator"
    return None


def _is_identity(node: onnx.NodeProto, graph: Graph, used: Container[str]) -> bool:
    """Whether the node only passes its first input on."""
    if node.op_type == "Identity":
        return True
    if node.op_type != "Dropout" or any(name in used for name in node.output[1:]):
        return False
    if len(node.input) < 3 or not node.input[2]:
        return True
    training = graph.constants.get(node.input[2])
    return training is not None and not training.any()


def _empty(types: Mapping[str, TensorType]) -> dict[str, np.ndarray]:
    """Return the results that have no elements: nothing needs to run for them."""
    return {
        name: np.zeros(kind.shape, kind.dtype) for name, kind in types.items() if kind.elements == 0
    }
