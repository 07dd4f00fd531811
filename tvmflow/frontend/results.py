"""Nodes behind the outputs of a model, which make of them what an application wants.

They are ONNX's, and are there before anything else is done with the model: so the compiler and the
reference that its results are compared with read the same one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ..errors import CompileError
from ..ir.results import Step, indices_name, parse_result
from .nested import all_nodes, names_of, nested_graphs, own_names, renamed
from .prepare import check_versions
from .source import Source, dtype_name

_OPERATORS = {"softmax": "Softmax", "argmax": "ArgMax", "topk": "TopK"}


def with_results(source: Source, results: Mapping[str, str] | None) -> Source:
    """Return a copy of a model with the nodes that `results` asks for behind its outputs.

    Raises `CompileError` if there is no such output, or it cannot be that.

    ::

        before  scores = Gemm(x, w)
        after   scores_before = Gemm(x, w)
                scores_softmax = Softmax(scores_before, axis=1)
                scores, scores_places = TopK(scores_softmax, [5], axis=1)
                scores_indices = Cast(scores_places, to=int32)
    """
    if not results:
        return source
    model = onnx.ModelProto()
    model.CopyFrom(source.model)
    opset = check_versions(model)
    for name, what in results.items():
        output, steps = _output(source, model, name), parse_result(name, what)
        if not steps:
            continue
        values = set().union(*map(own_names, _graphs(model.graph)))
        _Tail(model.graph, opset, output, values).append(steps)
    return replace(source, model=model)


def _graphs(graph: onnx.GraphProto) -> list[onnx.GraphProto]:
    return [graph, *(each for node in all_nodes(graph.node) for each in nested_graphs(node))]


def _output(source: Source, model: onnx.ModelProto, name: str) -> onnx.ValueInfoProto:
    """Return an output that a node computes, with its axes as they are declared or inferred."""
    graph = model.graph
    known = names_of(graph.output)
    if name not in known:
        raise CompileError(
            f"A result was asked for of the output {name!r}; the outputs of {source.label} are "
            f"{', '.join(known)}.",
            remedy="Give `results` the name of one of them.",
        )
    output = graph.output[known.index(name)]
    if not any(name in node.output for node in graph.node):
        raise CompileError(
            f"A result was asked for of the output {name!r}, which is an input or a weight; "
            "expected one that a node computes.",
            remedy="Put an Identity before it in the model.",
        )
    if not output.type.tensor_type.HasField("shape"):
        output.CopyFrom(onnx.shape_inference.infer_shapes(model).graph.output[known.index(name)])
    if not output.type.tensor_type.HasField("shape"):
        raise CompileError(
            f"A result was asked for of the output {name!r}; expected a tensor whose number of "
            "axes the model states, or ONNX infers.",
            remedy="Export the model with the shapes of its outputs.",
        )
    return output


@dataclass
class _Tail:
    """The nodes behind an output, which change its type."""

    graph: onnx.GraphProto
    opset: int
    output: onnx.ValueInfoProto
    #: Names of values.
    taken: set[str]
    nodes: list[onnx.NodeProto] = field(default_factory=list)

    def append(self, steps: Sequence[Step]) -> None:
        """Make of the output what the steps say."""
        name = self.output.name
        value = before = self._fresh("before")
        for step in steps:
            axis = self._checked_axis(step)
            value = getattr(self, f"_{step.kind}")(value, axis, step.k)
        nodes = [renamed(node, {name: before}) for node in self.graph.node]
        nodes += [renamed(node, {value: name}) for node in self.nodes]
        del self.graph.node[:]
        self.graph.node.extend(nodes)
        for info in self.graph.value_info:
            info.name = before if info.name == name else info.name

    @property
    def _dims(self) -> Any:
        return self.output.type.tensor_type.shape.dim

    def _checked_axis(self, step: Step) -> int:
        """Return the axis of a step; refuse what it cannot be taken of."""
        name, rank = self.output.name, len(self._dims)
        axis = step.axis if step.axis is not None else 1 if rank == 4 else -1
        if not -rank <= axis < rank:
            raise CompileError(
                f"The {step.kind} of the output {name!r} was asked for along the axis {axis}; it "
                f"has {rank} axes.",
                remedy=f"Give an axis from {-rank} to {rank - 1}." if rank else "Leave it out.",
            )
        axis %= rank
        schema = onnx.defs.get_schema(_OPERATORS[step.kind], self.opset)
        allowed = {text[len("tensor(") : -1] for text in schema.inputs[0].types}
        dtype = dtype_name(self.output.type.tensor_type.elem_type).lower()
        if dtype not in allowed:
            raise CompileError(
                f"The {step.kind} of the output {name!r} was asked for, whose elements are "
                f"{dtype}; expected one of {', '.join(sorted(allowed))} in the operator set "
                f"{self.opset}.",
                remedy="Leave the output out of `results`.",
            )
        extent = self._dims[axis].dim_value
        if self._dims[axis].HasField("dim_value") and step.k > extent:
            raise CompileError(
                f"The {step.k} largest elements were asked for of the output {name!r}, which has "
                f"{extent} along the axis {axis}.",
                remedy=f"Ask with `results` for topk:{extent} at most.",
            )
        return axis

    def _fresh(self, hint: str) -> str:
        """Return a name that no value has."""
        name = f"{self.output.name}_{hint}"
        while name in self.taken:
            name += "_"
        self.taken.add(name)
        return name

    def _emit(
        self, operator: str, inputs: Sequence[str], outputs: Sequence[str] = (), **attributes: Any
    ) -> str:
        """Append a node; return its first result."""
        outputs = outputs or [self._fresh(operator.lower())]
        self.nodes.append(helper.make_node(operator, inputs, outputs, **attributes))
        return outputs[0]

    def _softmax(self, value: str, axis: int, _: int) -> str:
        last = len(self._dims) - 1
        if self.opset >= 13 or axis == last:
            return self._emit("Softmax", [value], axis=axis)
        # Before operator set 13 it is over all axes from the given one on.
        order = [each for each in range(last + 1) if each != axis] + [axis]
        value = self._emit("Transpose", [value], perm=order)
        value = self._emit("Softmax", [value], axis=last)
        return self._emit("Transpose", [value], perm=[order.index(i) for i in range(last + 1)])

    def _argmax(self, value: str, axis: int, _: int) -> str:
        places = self._emit("ArgMax", [value], axis=axis, keepdims=0)
        del self._dims[axis]
        self.output.type.tensor_type.elem_type = TensorProto.INT32
        return self._int32(places)

    def _topk(self, value: str, axis: int, k: int) -> str:
        indices = indices_name(self.output.name)
        if indices in self.taken:
            raise CompileError(
                f"The largest elements of the output {self.output.name!r} were asked for, whose "
                f"indices would be the output {indices!r}; the model has a tensor of that name.",
                remedy="Rename that tensor in the model.",
            )
        self.taken.add(indices)
        pair = [self._fresh("largest"), self._fresh("places")]
        if self.opset < 10:
            self._emit("TopK", [value], pair, axis=axis, k=k)
        else:
            number = numpy_helper.from_array(np.array([k], np.int64))
            count = self._emit("Constant", [], [self._fresh("k")], value=number)
            self._emit("TopK", [value, count], pair, axis=axis)
        self._int32(pair[1], [indices])
        self._dims[axis].dim_value = k
        shape = [each.dim_value or each.dim_param or None for each in self._dims]
        self.graph.output.append(helper.make_tensor_value_info(indices, TensorProto.INT32, shape))
        return pair[0]

    def _int32(self, value: str, outputs: Sequence[str] = ()) -> str:
        # Types were called by name before operator set 6.
        kind = TensorProto.INT32 if self.opset >= 6 else "INT32"
        return self._emit("Cast", [value], outputs, to=kind)
