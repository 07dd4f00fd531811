"""Option `results`: nodes after a model's outputs that convert them to an application's form.

They are ONNX nodes and added before anything else reads the model, so the compiler and the
reference for its results read the same model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ..errors import CompileError
from ..ir.results import (
    Selection,
    Step,
    classes_name,
    indices_name,
    pairs,
    parse_boxes,
    parse_result,
    parse_selection,
)
from .graph import lists_of
from .nested import all_graphs, names_of, own_names, renamed
from .prepare import check_versions
from .source import Source, dtype_name

_OPERATORS = {"softmax": "Softmax", "argmax": "ArgMax", "topk": "TopK"}


def with_results(source: Source, results: Mapping[str, str] | None) -> Source:
    """Return a copy of a model with the nodes that `results` asks for after its outputs.

    Raises `CompileError` if there is no such output, or it cannot have the requested form.

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
    together = {name: pair for name in results if (pair := _pair(model.graph, name)) is not None}
    for name, what in results.items():
        steps = parse_result(name, what)
        if name in together:
            continue
        output = _output(source, model, name)
        if steps:
            _Tail(model.graph, opset, output, _names(model)).append(steps)
        elif parse_boxes(what) is None:
            raise CompileError(
                f"The result {what!r} was asked for of the output {name!r}; expected two outputs.",
                remedy=f"Give the outputs of boxes and of scores as in BOXES+SCORES={what}.",
            )
    for name, (boxes, scores) in together.items():
        selection = parse_selection(name, results[name])
        if selection is None:
            raise CompileError(
                f"The result {results[name]!r} was asked for of the outputs {boxes!r} and "
                f"{scores!r}; expected nms or topk:K of a pair.",
                remedy="Ask with `results` for nms:iou=0.5,max=100, for example.",
            )
        if selection.form is None:
            found = parse_boxes(results.get(boxes, ""))
            selection = replace(selection, form=found[0] if found else "xyxy")
        outputs = _output(source, model, boxes), _output(source, model, scores)
        _Boxes(*outputs, _Tail(model.graph, opset, outputs[1], _names(model))).select(selection)
    return replace(source, model=model)


def _names(model: onnx.ModelProto) -> set[str]:
    """Return the names of all values of the model."""
    return set().union(*map(own_names, all_graphs(model.graph)))


def _pair(graph: onnx.GraphProto, name: str) -> tuple[str, str] | None:
    """Return the two outputs of a name such as ``boxes+scores``; ``None`` for other names."""
    known = set(names_of(graph.output))
    found = [pair for pair in pairs(name) if known.issuperset(pair)]
    return found[0] if found and name not in known else None


def _output(source: Source, model: onnx.ModelProto, name: str) -> onnx.ValueInfoProto:
    """Return an output that a node computes, with its declared or inferred shape."""
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
    """Nodes after an output, which change its type."""

    graph: onnx.GraphProto
    opset: int
    output: onnx.ValueInfoProto
    #: Names of all values.
    taken: set[str]
    nodes: list[onnx.NodeProto] = field(default_factory=list)

    def append(self, steps: Sequence[Step]) -> None:
        """Append the steps to the output."""
        name = self.output.name
        value = before = self._fresh("before")
        for step in steps:
            axis = self._checked_axis(step)
            value = getattr(self, f"_{step.kind}")(value, axis, step.k)
        self.finish({name: before}, {value: name})

    def finish(self, before: Mapping[str, str], after: Mapping[str, str]) -> None:
        """Append the nodes to the graph; rename the former outputs and the new results."""
        nodes = [renamed(node, before) for node in self.graph.node]
        nodes += [renamed(node, after) for node in self.nodes]
        del self.graph.node[:]
        self.graph.node.extend(nodes)
        for info in self.graph.value_info:
            info.name = before.get(info.name, info.name)

    @property
    def _dims(self) -> Any:
        return self.output.type.tensor_type.shape.dim

    def _checked_axis(self, step: Step) -> int:
        """Return the axis of a step; refuse outputs that the step cannot be applied to."""
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

    def _fresh(self, hint: str, output: str = "") -> str:
        """Return an unused name that starts with the output's."""
        name = f"{output or self.output.name}_{hint}"
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
        # Before operator set 13 Softmax normalises over all axes starting at the given one.
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
        # Before operator set 6 the attribute is the type's name.
        kind = TensorProto.INT32 if self.opset >= 6 else "INT32"
        return self._emit("Cast", [value], outputs, to=kind)


@dataclass
class _Boxes:
    """Selection of boxes by their scores; `tail` collects the nodes."""

    boxes: onnx.ValueInfoProto
    scores: onnx.ValueInfoProto
    tail: _Tail

    def select(self, selection: Selection) -> None:
        """Reduce the two outputs to the selected boxes, and add outputs for classes and indices.

        Boxes become ``[K, 4]``, scores, classes and indices of boxes ``[K]``, in falling order of
        scores.  Raises `CompileError` if the outputs are not boxes and scores of one image.
        """
        t, names = self.tail, (self.boxes.name, self.scores.name)
        befores = [t._fresh("before", name) for name in names]
        boxes = self._rows_of_boxes(befores[0])
        scores, has_classes = self._rows_of_scores(befores[1])
        if selection.iou is None:
            found = self._largest(boxes, scores, selection, has_classes)
        else:
            found = self._suppressed(boxes, scores, selection, has_classes)
        count = selection.most if selection.iou is None else f"{self.boxes.name}_kept"
        kinds = [TensorProto.FLOAT, TensorProto.FLOAT, TensorProto.INT32, TensorProto.INT32]
        more = [classes_name(names[1])] * has_classes + [indices_name(names[1])]
        if taken := [name for name in more if name in t.taken]:
            raise self._refusal(f"the model has a tensor {taken[0]!r}, which a result would be")
        after = {}
        for name, kind, value in zip([*names, *more], kinds[: 2 + len(more)], found, strict=True):
            result = t._emit("Cast", [value], to=kind) if kind == TensorProto.INT32 else value
            after[result] = name
            shape = [count, 4] if name == names[0] else [count]
            info = helper.make_tensor_value_info(name, kind, shape)
            known = [output for output in t.graph.output if output.name == name]
            if known:
                known[0].CopyFrom(info)
            else:
                t.graph.output.append(info)
        t.finish(dict(zip(names, befores, strict=True)), after)

    def _largest(
        self, boxes: str, scores: str, selection: Selection, has_classes: bool
    ) -> list[str]:
        """Select the boxes with the largest scores, each with its best class."""
        t = self.tail
        best = self._along_first("ReduceMax", scores, keepdims=0)
        pair = [t._fresh("largest"), t._fresh("places")]
        t._emit("TopK", [best, self._axes([selection.most])], pair, axis=0)
        classes = [t._emit("ArgMax", [scores], axis=0, keepdims=0)] * has_classes
        classes = [t._emit("Gather", [each, pair[1]], axis=0) for each in classes]
        return [t._emit("Gather", [boxes, pair[1]], axis=0), pair[0], *classes, pair[1]]

    def _suppressed(
        self, boxes: str, scores: str, selection: Selection, has_classes: bool
    ) -> list[str]:
        """Select boxes that no box of the same class with a higher score overlaps."""
        t, most = self.tail, self._axes([selection.most])
        inputs = [self._unsqueezed(self._with_corners(boxes, selection.form)),
                  self._unsqueezed(scores), most, self._constant([selection.iou])]  # fmt: skip
        if selection.score is not None:
            inputs.append(self._constant([selection.score]))
        centered = int(selection.form == "cxcywh")
        kept = t._emit("NonMaxSuppression", inputs, center_point_box=centered)
        slices = [self._axes([1]), self._axes([3]), self._axes([1])]
        pairs_ = t._emit("Slice", [kept, *slices])
        values = t._emit("GatherND", [scores, pairs_])
        classes, rows = (
            t._emit("Gather", [kept, self._constant(axis, np.int64)], axis=1) for axis in (1, 2)
        )
        if has_classes:
            # Boxes are sorted within each class only, so the best of all classes are selected here.
            count = t._emit("Min", [t._emit("Shape", [values]), most])
            pair = [t._fresh("best"), t._fresh("places")]
            t._emit("TopK", [values, count], pair, axis=0)
            values = pair[0]
            classes, rows = (t._emit("Gather", [v, pair[1]], axis=0) for v in (classes, rows))
        boxes = t._emit("Gather", [boxes, rows], axis=0)
        return [boxes, values, *[classes] * has_classes, rows]

    def _rows_of_boxes(self, value: str) -> str:
        """Convert boxes to ``[N, 4]``."""
        dims = self._dims(self.boxes)
        rank = len(dims)
        if self.tail.opset < 12:
            raise self._refusal(
                f"the model has operator set {self.tail.opset}; expected 12 or newer"
            )
        for each in (self.boxes, self.scores):
            if each.type.tensor_type.elem_type != TensorProto.FLOAT:
                raise self._refusal(f"{each.name!r} is not of float32")
        if rank not in (2, 3) or 4 not in dims[-2:]:
            raise self._refusal(f"{self.boxes.name!r} has the shape {dims}; expected [1, N, 4], "
                                "[N, 4] or [1, 4, N]")  # fmt: skip
        value = self._without_image(value, dims, rank == 3)
        return value if dims[-1] == 4 else self.tail._emit("Transpose", [value], perm=[1, 0])

    def _rows_of_scores(self, value: str) -> tuple[str, bool]:
        """Convert scores to ``[C, N]``; also return whether they have an axis of classes."""
        boxes, dims = self._dims(self.boxes), self._dims(self.scores)
        number = boxes[-2] if boxes[-1] == 4 else boxes[-1]
        has_image = len(boxes) == 3
        axes = dims[1:] if has_image else dims
        if len(axes) not in (1, 2) or (isinstance(number, int) and not any(
            axis == number or not isinstance(axis, int) for axis in axes
        )):  # fmt: skip
            lead = "1, " if has_image else ""
            raise self._refusal(f"{self.scores.name!r} has the shape {dims}; expected [{lead}N], "
                                f"[{lead}N, C] or [{lead}C, N] of {number} boxes")  # fmt: skip
        value = self._without_image(value, dims, has_image)
        if len(axes) == 1:
            return self._unsqueezed(value), False
        # Classes are the last axis, unless only the other axis can be the classes.
        turned = axes[1] == number and axes[0] != number
        return value if turned else self.tail._emit("Transpose", [value], perm=[1, 0]), True

    def _without_image(self, value: str, dims: list[Any], has_image: bool) -> str:
        if not has_image:
            return value
        if isinstance(dims[0], int) and dims[0] != 1:
            raise self._refusal(f"there are {dims[0]} images; expected one")
        return self._along_first("Squeeze", value)

    def _with_corners(self, boxes: str, form: str | None) -> str:
        """Convert boxes given by a corner and a size to two corners; other forms are unchanged."""
        if form != "xywh":
            return boxes
        t, column = self.tail, self._axes([1])
        corner, size = (
            t._emit("Slice", [boxes, self._axes([begin]), self._axes([begin + 2]), column])
            for begin in (0, 2)
        )
        return t._emit("Concat", [corner, t._emit("Add", [corner, size])], axis=1)

    def _unsqueezed(self, value: str) -> str:
        return self._along_first("Unsqueeze", value)

    def _along_first(self, op_type: str, value: str, **attributes: Any) -> str:
        """Apply an operator along the first axis."""
        axes, older = lists_of(op_type, self.tail.opset, self._axes, axes=[0])
        return self.tail._emit(op_type, [value, *axes], **attributes, **older)

    def _axes(self, values: object) -> str:
        return self._constant(values, np.int64)

    def _constant(self, value: object, dtype: type = np.float32) -> str:
        array = numpy_helper.from_array(np.array(value, dtype))
        return self.tail._emit("Constant", [], [self.tail._fresh("constant")], value=array)

    @staticmethod
    def _dims(info: onnx.ValueInfoProto) -> list[Any]:
        """Return the extents of an output: numbers, names, or ``None``."""
        dims = info.type.tensor_type.shape.dim
        return [d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in dims]

    def _refusal(self, why: str) -> CompileError:
        return CompileError(
            f"Boxes {self.boxes.name!r} were to be kept by the scores {self.scores.name!r}: {why}.",
            remedy="Give outputs of boxes and scores of one image, or leave them out of `results`.",
        )
