"""Option ``check_indices``: report which node reads an index from data that is out of range.

Each column of indices gets an output of the network, an int64 scalar, which the host compares with
the range after a run::

    before  y = GatherElements(x, indices, axis=1)
    after   y = GatherElements(x, indices, axis=1)
            worst = Where(ReduceMin(indices) < -extent, ReduceMin(indices), ReduceMax(indices))
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper

from ..ir.names import unique
from ..ir.tensors import SizeLimit, TensorType
from .converter import normalized_axis
from .graph import Graph, node_attributes, node_name

#: Index of the input that holds indices, by operator.  In `_ALONG_AXIS` the extent along the
#: attribute ``axis`` is the range; `_ranges` has the ranges of the others.
_ALONG_AXIS = {
    "Gather": 1, "GatherElements": 1, "Scatter": 1, "ScatterElements": 1,
}  # fmt: skip
_OTHERS = {
    "GatherND": 1, "ScatterND": 1, "RoiAlign": 2, "MaxUnpool": 1, "RotaryEmbedding": 3,
    "NegativeLogLikelihoodLoss": 1, "SoftmaxCrossEntropyLoss": 1, "ReverseSequence": 1,
    "TensorScatter": 2, "LSTM": 4, "GRU": 4, "RNN": 4,
}  # fmt: skip
PLACES = _ALONG_AXIS | _OTHERS


def add_index_checks(graph: Graph, names: list[str]) -> tuple[SizeLimit, ...]:
    """Add an output for each column of indices from data, and return their ranges.

    The names of the added outputs are appended to ``names``.  Nodes in bodies of VM loops are not
    checked.
    """
    taken = {*graph.types, *graph.constants, *names}
    checks = []
    for node in list(graph.nodes):
        place = PLACES.get(node.op_type)
        if place is None or node.domain or len(node.input) <= place:
            continue
        indices = node.input[place]
        if not indices or indices in graph.constants or not graph.type_of(indices).elements:
            continue
        for column, (least, most) in enumerate(_ranges(graph, node)):
            name = unique(f"{node_name(node)}.index", taken)
            depth = graph.type_of(indices).shape[-1] if node.op_type.endswith("ND") else 1
            graph.outputs.append(_Worst(graph, indices, taken).output(column, depth, least))
            names.append(name)
            checks.append(SizeLimit(name, node_name(node), most, least))
    return tuple(checks)


def _ranges(graph: Graph, node: onnx.NodeProto) -> Iterator[tuple[int, int]]:
    """Yield the least and the largest valid index for each column of indices."""
    attributes = node_attributes(node)
    shape = graph.type_of(node.input[0]).shape
    match node.op_type:
        case operator if operator in _ALONG_AXIS:
            extent = shape[normalized_axis(attributes.get("axis", 0), len(shape))]
            yield -extent, extent - 1
        case "GatherND" | "ScatterND":
            first, depth = attributes.get("batch_dims", 0), graph.type_of(node.input[1]).shape[-1]
            yield from ((-extent, extent - 1) for extent in shape[first : first + depth])
        case "RoiAlign":
            yield 0, shape[0] - 1
        case "MaxUnpool":
            yield 0, int(np.prod(graph.type_of(node.output[0]).shape)) - 1
        case "RotaryEmbedding":
            yield 0, graph.type_of(node.input[1]).shape[0] - 1
        case "NegativeLogLikelihoodLoss" | "SoftmaxCrossEntropyLoss":
            # With `ignore_index` any label may occur, as ignored labels need not be in range.
            if "ignore_index" not in attributes:
                yield 0, shape[1] - 1
        case "ReverseSequence":
            yield 0, shape[attributes.get("time_axis", 0)]
        case "TensorScatter":
            axis = normalized_axis(attributes.get("axis", -2), len(shape))
            part = graph.type_of(node.input[1]).shape[axis]
            circular = attributes.get("mode", "linear") == "circular"
            yield 0, shape[axis] if circular else shape[axis] - part
        case _:
            yield 0, shape[1 if attributes.get("layout") else 0]


class _Worst:
    """Builder of nodes that compute an index out of range if there is one, else any index."""

    def __init__(self, graph: Graph, indices: str, taken: set[str]):
        self._graph, self._indices, self._taken = graph, indices, taken

    def output(self, column: int, depth: int, least: int) -> str:
        """Add the nodes for one of ``depth`` columns; return the name of their result."""
        count = self._graph.type_of(self._indices).elements // depth
        wide = self._add("Cast", [self._indices], self._shape, "int64", to=onnx.TensorProto.INT64)
        if depth > 1:
            wide = self._add("Reshape", [wide, self._constant([count, depth])], (count, depth))
            wide = self._add("Gather", [wide, self._constant(column)], (count,), axis=1)
        lowest, highest = (
            self._add(f"Reduce{which}", [wide], (), keepdims=0) for which in ("Min", "Max")
        )
        below = self._add("Less", [lowest, self._constant(least)], (), "bool")
        return self._add("Where", [below, lowest, highest], ())

    @property
    def _shape(self) -> tuple[int, ...]:
        return self._graph.type_of(self._indices).shape

    def _constant(self, value: int | list[int]) -> str:
        name = unique("index_range", self._taken)
        self._graph.constants[name] = np.array(value, np.int64)
        return name

    def _add(
        self,
        op_type: str,
        inputs: Sequence[str],
        shape: tuple[int, ...],
        dtype: str = "int64",
        **attributes: Any,
    ) -> str:
        name = unique("index", self._taken)
        node = helper.make_node(op_type, inputs, [name], name=name, **attributes)
        self._graph.nodes.append(node)
        self._graph.types[name] = TensorType(shape, dtype)
        return name
