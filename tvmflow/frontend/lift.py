"""Separation of a model's weights from its nodes, including those of nested graphs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import helper

from ..errors import ModelError, UnsupportedModelError
from ..ir.names import unique
from .graph import DEFAULT_DOMAINS, node_name
from .nested import all_nodes, names_of, nested_graphs
from .source import Source, constant_value, to_array

#: Deepest nesting of graphs.  Parsers of Protocol Buffers allow a hundred nested messages: a nested
#: graph takes three (node, attribute, graph), the model around them two, and a value's type five.
DEEPEST_GRAPH = 30


def lift_constants(
    graph: onnx.GraphProto, source: Source, constants: dict[str, np.ndarray]
) -> list[onnx.NodeProto]:
    """Return a graph's nodes without weights, which are added to ``constants``.

    Weights are initializers and Constant nodes.  Weights of nested graphs are renamed if their
    names are taken.  The graph is not changed, and no weight is copied::

        before                                      after
        y = If(c, then: w = initializer             y = If(c, then: Mul(x, w),
                        Mul(x, w),                            else: Mul(x, w_1))
                  else: w = Constant()
                        Mul(x, w))

    Raises ``ModelError`` if a graph has two initializers of one name; ``UnsupportedModelError`` if
    it has sparse ones, or graphs are nested too deeply.
    """
    own = _own_constants(graph, source)
    constants.update(own)
    taken = {*constants, *names_of(graph.input)}
    for node in all_nodes(graph.node):
        taken.update(() if _is_constant(node) else node.output)
        for inner in nested_graphs(node):
            taken.update(names_of(inner.input), names_of(inner.output))
    lifting = _Lifting(source, constants, taken)
    return [lifting.node(n, {}, 1) for n in graph.node if not own.keys() & set(n.output)]


@dataclass
class _Lifting:
    source: Source
    constants: dict[str, np.ndarray]
    #: Names that a weight of a nested graph cannot take in the outer graph.
    taken: set[str] = field(default_factory=set)

    def node(self, node: onnx.NodeProto, names: Mapping[str, str], depth: int) -> onnx.NodeProto:
        """Return a copy of a node without weights; ``names`` maps weights to their new names."""
        copy = onnx.NodeProto()
        for attribute in node.attribute:
            if attribute.type == attribute.GRAPH:
                if depth > DEEPEST_GRAPH:
                    raise UnsupportedModelError(
                        f"Graphs are nested more than {DEEPEST_GRAPH} deep in the model, at node "
                        f"{node_name(node)!r} ({node.op_type}).",
                        remedy="Export it with fewer branches and loops within each other.",
                    )
                inner = self.nested(attribute.g, names, depth)
                copy.attribute.add(name=attribute.name, type=attribute.type, g=inner)
            else:
                copy.attribute.append(attribute)
        copy.MergeFrom(onnx.NodeProto(
            name=node.name, op_type=node.op_type, overload=node.overload,
            domain="" if node.domain in DEFAULT_DOMAINS else node.domain,
            input=[names.get(name, name) for name in node.input], output=node.output,
        ))  # fmt: skip
        return copy

    def nested(
        self, graph: onnx.GraphProto, names: Mapping[str, str], depth: int
    ) -> onnx.GraphProto:
        """Return a copy of a nested graph without weights."""
        inputs = set(names_of(graph.input))
        # An input of the nested graph takes precedence over a weight of the same name.
        own = {n: a for n, a in _own_constants(graph, self.source).items() if n not in inputs}
        results = {name for node in graph.node for name in node.output}
        known = {old: new for old, new in names.items() if old not in inputs | results}
        for name, array in own.items():
            known[name] = unique(name, self.taken)
            self.constants[known[name]] = array
        copy = onnx.GraphProto(name=graph.name, input=graph.input, output=graph.output)
        copy.node.extend(
            self.node(n, known, depth + 1) for n in graph.node if not own.keys() & set(n.output)
        )
        # ONNX requires that a graph itself computes its results.
        copy.node.extend(
            helper.make_node("Identity", [known[name]], [name])
            for name in dict.fromkeys(names_of(graph.output))
            if name in own
        )
        return copy


def _is_constant(node: onnx.NodeProto) -> bool:
    return node.op_type == "Constant" and node.domain in DEFAULT_DOMAINS and bool(node.output)


def _own_constants(graph: onnx.GraphProto, source: Source) -> dict[str, np.ndarray]:
    """Return the weights of one graph by their names in it."""
    if graph.sparse_initializer:
        raise UnsupportedModelError(
            f"The model has {len(graph.sparse_initializer)} sparse weights, the first is "
            f"{graph.sparse_initializer[0].values.name!r}; only dense ones can be compiled.",
            remedy="Export the model with dense weights.",
        )
    found: dict[str, np.ndarray] = {}
    for tensor in graph.initializer:
        if tensor.name in found:
            raise ModelError(
                f"The model has two initializers named {tensor.name!r}.",
                remedy="Export the model again.",
            )
        found[tensor.name] = to_array(tensor, source)
    # Some exporters store weights in Constant nodes.
    for node in filter(_is_constant, graph.node):
        value = constant_value(node, source)
        if value is not None:
            found[node.output[0]] = value
    return found
