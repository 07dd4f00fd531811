"""Replacement of a node by other nodes, and the constants that these need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper

from .converter import Refusal
from .graph import node_attributes, node_name


class Parts:
    """Nodes that replace a node; the last one gets its name and first result."""

    def __init__(
        self, node: onnx.NodeProto, opset: int, constants: dict[str, np.ndarray],
        packed: Mapping[str, int], origins: dict[str, tuple[str, ...]],
    ):  # fmt: skip
        self.node, self.opset, self.constants, self.packed = node, opset, constants, packed
        self._origins = origins
        self._sources = tuple(name for name in node.input if name in constants)
        self.attributes: dict[str, Any] = node_attributes(node)
        self._name = node_name(node)
        # Node names need not be unique, names of results are.
        self._base = next(filter(None, node.output), self._name)
        self._nodes: list[onnx.NodeProto] = []
        self._results: set[str] = set()

    def input(self, index: int) -> str:
        """Return the name of an input, empty if it is not given."""
        return str(self.node.input[index]) if index < len(self.node.input) else ""

    def inputs(self, *indices: int) -> list[str]:
        """Return the names of several inputs."""
        return [self.input(index) for index in indices]

    @property
    def nodes(self) -> list[onnx.NodeProto]:
        """Return all added nodes, and give the last one the replaced node's name and results."""
        last = self._nodes[-1]
        last.name = self._name
        for index, name in enumerate(self.node.output):
            if name in self._results:
                continue
            if index < len(last.output):
                last.output[index] = name
            else:
                last.output.append(name)
        return self._nodes

    def add(self, op_type: str, inputs: Sequence[str], **attributes: object) -> str:
        """Add a node and return the name of its first result."""
        return self.add_several(op_type, inputs, 1, **attributes)[0]

    def add_several(
        self, op_type: str, inputs: Sequence[str], count: int, **attributes: object
    ) -> list[str]:
        """Add a node and return the names of its results."""
        name = f"{self._base}:{op_type}{len(self._nodes)}"
        results = [name, *(f"{name}:{index}" for index in range(1, count))]
        given = list(inputs)
        while given and not given[-1]:
            given.pop()
        self._nodes.append(helper.make_node(op_type, given, results, name=name, **attributes))
        return results

    def result(self, index: int, value: str) -> None:
        """Define a further result of the node, if the node has it."""
        if index < len(self.node.output) and self.node.output[index]:
            name = self.node.output[index]
            self._nodes.append(helper.make_node("Identity", [value], [name], name=name))
            self._results.add(name)

    def known(self, index: int, what: str) -> np.ndarray:
        """Return the values of an input that must be constant; refuse the node otherwise."""
        array = self.constants.get(self.input(index))
        if array is None:
            raise Refusal(f"its {what} are computed at run time; only constant ones are supported")
        return array

    def constant(self, array: np.ndarray) -> str:
        """Add a constant that comes from the replaced node's constants, and return its name."""
        name = f"{self._base}:constant{len(self._nodes)}"
        while name in self.constants:
            name += "_"
        self.constants[name] = array
        self._origins[name] = self._sources
        return name

    def real(self, quantized: Sequence[str], **attributes: object) -> str:
        """Dequantize a tensor, given with its scale and zero point."""
        return self.add("DequantizeLinear", quantized, **attributes)

    def quantize(self, parameters: Sequence[str]) -> bool:
        """Quantize the last node's result if it has a scale; return false without a zero point."""
        if parameters[0] and not parameters[1]:
            return False
        if parameters[0]:
            self.add("QuantizeLinear", [self._nodes[-1].output[0], *parameters])
        return True

    def reshaped(self, value: str, shape: Sequence[int]) -> str:
        """Reshape a tensor."""
        return self.add("Reshape", [value, self.constant(np.array(shape, np.int64))])
