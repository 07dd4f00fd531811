"""The model between the file and Relax: nodes, constants, and a static type for every value."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import onnx

from ..ir.tensors import TensorInfo, TensorType


@dataclass
class Graph:
    """A model with static shapes.

    Parameters
    ----------
    name
        The model's name.
    opset
        Version of ONNX's operator set that the nodes follow.
    inputs
        What the caller passes, in order.
    outputs
        Names of the results, in order.
    nodes
        In topological order, each of the default domain or a custom operator, and without nested
        graphs.
    constants
        Initializers and everything computed from them, by name; large ones memory-mapped.
    large_weight_bytes
        Constants of at least this size stay outside the IR and are never rewritten.
    types
        Types of inputs and of node results, where they are known.
    dequantized
        The DequantizeLinear nodes by the names of their results, also of those that are constants.
    is_widened
        Whether what was float16 in the model is computed in fp32.
    half_outputs
        Outputs that are float16 to the application, though computed in fp32.
    problems
        Why nodes cannot be compiled, as :meth:`refuse` noted them.
    """

    name: str
    opset: int
    inputs: tuple[TensorInfo, ...]
    outputs: list[str]
    nodes: list[onnx.NodeProto]
    constants: dict[str, np.ndarray]
    large_weight_bytes: int
    types: dict[str, TensorType] = field(default_factory=dict)
    dequantized: dict[str, onnx.NodeProto] = field(default_factory=dict)
    half_outputs: set[str] = field(default_factory=set)
    is_widened: bool = False
    problems: list[Problem] = field(default_factory=list)
    _refused: dict[int, onnx.NodeProto] = field(default_factory=dict)

    def refuse(self, node: onnx.NodeProto, reason: str) -> None:
        """Note that a node cannot be compiled; it stays in ``nodes`` for what it depends on."""
        operator = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        self.problems.append(Problem(operator, node_name(node), reason))
        self._refused[id(node)] = node

    def is_refused(self, node: onnx.NodeProto) -> bool:
        """Whether the node was refused."""
        return id(node) in self._refused

    def type_of(self, name: str) -> TensorType:
        """The type of a value that is known."""
        if name in self.constants:
            array = self.constants[name]
            return TensorType(array.shape, str(array.dtype))
        return self.types[name]

    def drop_unused_nodes(self) -> None:
        """Keep only nodes that an output depends on."""
        needed = set(self.outputs)
        kept = []
        for node in reversed(self.nodes):
            if needed.intersection(node.output):
                needed.update(node.input)
                kept.append(node)
        self.nodes = kept[::-1]

    def consumers(self) -> dict[str, int]:
        """Count the uses of every value, by nodes and as an output."""
        counts: dict[str, int] = {}
        for name in _used_names(self.nodes, self.outputs):
            counts[name] = counts.get(name, 0) + 1
        return counts


@dataclass(frozen=True)
class Problem:
    """A node that cannot be compiled right, and why."""

    op_type: str
    node: str
    reason: str


def _used_names(nodes: Iterable[onnx.NodeProto], outputs: Iterable[str]) -> Iterable[str]:
    for node in nodes:
        yield from node.input
    yield from outputs


def has_nested_graph(node: onnx.NodeProto) -> bool:
    """Whether a node contains a branch or a loop's body."""
    return any(a.type in (a.GRAPH, a.GRAPHS) for a in node.attribute)


def node_name(node: onnx.NodeProto) -> str:
    """The node's name; exporters that leave it out still name its results."""
    if node.name:
        return str(node.name)
    return next((str(name) for name in node.output if name), str(node.op_type))
