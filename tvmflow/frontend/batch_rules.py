"""Rules of the proof in :mod:`.batch`: along which axis each operator's results have the batch.

A rule labels the axes of an operator's operands and results, as the equation of an Einsum does.
The samples of a result lie along the axis with the label that the batch has in the operands.  An
operator mixes elements along the axes of operands that no result has a label for.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import onnx

from .graph import ELEMENTWISE, Graph, node_attributes


@dataclass(frozen=True)
class Batch:
    """The axis of a value's samples: sample ``i`` begins at the index ``i * each``."""

    axis: int
    #: Indices of the axis that belong to one sample.
    each: int = 1


class NotProvenError(Exception):
    """The reason why a node's samples are not known to be independent."""


#: Kinds of numbers in shapes: independent of the batch, a multiple of it, or dependent otherwise.
FREE, MULTIPLE, DEPENDS = 0, 1, 2


@dataclass
class BatchFacts:
    """The facts about the values of a model at two batches."""

    graphs: Sequence[Graph]
    #: Batch axes of the values that have one.
    batches: dict[str, Batch] = field(default_factory=dict)
    #: Kind of each number of the values computed from shapes.
    kinds: dict[str, np.ndarray] = field(default_factory=dict)
    #: The value that a result of Identity or Dropout equals, by that result.
    aliases: dict[str, str] = field(default_factory=dict)

    def shape(self, name: str, probe: int = 0) -> tuple[int, ...]:
        """Return the shape of a value at the batch of 2, or of 3 if ``probe`` is 1."""
        try:
            return self.graphs[probe].type_of(self.aliases.get(name, name)).shape
        except KeyError:
            raise NotProvenError("the shape of its result is not known") from None


class Node:
    """A node as rules see it: batches, shapes and constants of its operands, and attributes."""

    def __init__(self, values: BatchFacts, node: onnx.NodeProto):
        self.values, self.node = values, node
        self.opset = values.graphs[0].opset
        self.attributes = node_attributes(node)
        self.inputs = [values.aliases.get(name, name) for name in node.input]
        self.results = len([name for name in node.output if name])
        #: Indices of the inputs whose numbers may be multiples of the batch.
        self.extents_at: set[int] = set()

    def name(self, index: int) -> str:
        """Return the value that is an input; empty if it is left out."""
        return self.inputs[index] if index < len(self.inputs) else ""

    def shape(self, index: int = 0) -> tuple[int, ...]:
        """Return the shape of an input at a batch of 2."""
        return self.values.shape(self.name(index))

    def rank(self, index: int = 0) -> int:
        """Return the number of an input's axes."""
        return len(self.shape(index))

    def axis(self, default: int, rank: int = 0) -> int:
        """Return the attribute ``axis``, counted from the first one."""
        axis = int(self.attributes.get("axis", default))
        return axis % (rank or self.rank()) if axis < 0 else axis

    def batch(self, index: int) -> Batch | None:
        """Return the batch of an input; ``None`` if it does not depend on the batch."""
        if self.values.kinds.get(self.name(index), np.zeros(0)).any():
            raise NotProvenError("it computes with the batch's extent")
        return self.values.batches.get(self.name(index))

    def main(self) -> Batch:
        """Return the batch that the first input must have."""
        batch = self.batch(0)
        if batch is None:
            raise NotProvenError("an extent of its result depends on the batch")
        return batch

    def constant(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the numbers of an input that must be constant, and the kind of each."""
        array = self.values.graphs[0].constants.get(self.name(index))
        if array is None:
            raise NotProvenError("it needs a number that is known only at run time")
        return array, self.values.kinds.get(self.name(index), np.full(array.shape, FREE))

    def numbers(self, attribute: str, index: int) -> list[Any]:
        """Return numbers that are an attribute or, since some operator set, an input.

        They are empty where both are left out.
        """
        if attribute not in self.attributes and self.name(index):
            array, kinds = self.constant(index)
            if kinds.any():
                raise NotProvenError("it computes with the batch's extent")
            return list(array.reshape(-1).tolist())
        return list(self.attributes.get(attribute, ()))

    def extents(self, index: int) -> list[int]:
        """Return the axes for which an input requests a multiple of the batch as extent."""
        self.extents_at.add(index)
        kinds = self.constant(index)[1].reshape(-1)
        if (kinds == DEPENDS).any():
            raise NotProvenError(
                "an extent that it asks for depends on the batch, and is no multiple"
            )
        return [int(axis) for axis in np.flatnonzero(kinds == MULTIPLE)]


#: Labels of a tensor's axes; those of an operand that are ``None`` are of axes that are mixed.
Labels = Sequence[Hashable]
#: Labels of the operands that may have the batch, and of each result (or one for all results); or
#: the batch of all results.
Answer = tuple[Mapping[int, Labels], Sequence[Labels]] | Batch


def batches_of_results(c: Node) -> list[Batch]:
    """Return the batch of each result of a node.

    All operands that have an axis with the batch's label must have the batch; operands without
    labels must not have it.
    """
    if c.node.op_type not in _RULES:
        raise NotProvenError("nothing is known of this operator")
    rule, reason = _RULES[c.node.op_type]
    answer = rule(c)
    if isinstance(answer, Batch):
        return [answer] * len(c.node.output)
    operands, results = answer
    found = set()
    for index in range(len(c.inputs)):
        batch = None if index in c.extents_at else c.batch(index)
        if batch is not None and index not in operands:
            raise NotProvenError(f"its input {c.name(index)!r} has the batch, too")
        if batch is not None:
            found.add((dict(enumerate(operands[index])).get(batch.axis), batch.each))
    if len(found) != 1:
        raise NotProvenError("its inputs have the batch on different axes")
    ((label, each),) = found
    if label is None or any(labels.count(label) != 1 for labels in results):
        raise NotProvenError(reason)
    for index, labels in operands.items():
        if labels.count(label) > (c.batch(index) is not None):
            raise NotProvenError(f"its input {c.name(index)!r} has an extent for the batch")
    batches = [Batch(labels.index(label), each) for labels in results]
    return batches * len(c.node.output) if len(batches) == 1 else batches


# -- operators whose results have the axes of their operands, of which they mix some ---------------


def _mixing(axes: Callable[[Node], Sequence[int]], *inputs: int) -> Callable[[Node], Answer]:
    """Label the axes of operators that mix some of them; by default those of all inputs."""

    def rule(c: Node) -> Answer:
        c.main()
        mixed = {axis % c.rank() for axis in axes(c)}
        labels = [None if axis in mixed else axis for axis in range(c.rank())]
        operands = [index for index in inputs or range(len(c.inputs)) if c.name(index)]
        kept = c.attributes.get("keepdims", 1)
        return dict.fromkeys(operands, labels), [[a for a in labels if kept or a is not None]]

    return rule


def _pooled(c: Node) -> Sequence[int]:
    if c.results > 1:
        raise NotProvenError("it counts places in the whole batch")
    return range(1, c.rank())


def _quantized(c: Node) -> Sequence[int]:
    if c.attributes.get("block_size") or c.rank(1) > 1:
        raise NotProvenError("it has a scale for each block")
    return (c.axis(1),) if prod(c.shape(1)) > 1 else ()


def _reduced(c: Node) -> Sequence[int]:
    axes = c.numbers("axes", 1)
    return axes if axes or c.attributes.get("noop_with_empty_axes") else range(c.rank())


def _padded(c: Node) -> Sequence[int]:
    axes, pads = c.numbers("", 3) or range(c.rank()), c.numbers("pads", 1)
    if len(pads) != 2 * len(axes):
        raise NotProvenError("its pads are not known")
    return [axis for place, axis in enumerate(axes) if pads[place] or pads[place + len(axes)]]


def _cut(c: Node) -> Sequence[int]:
    """Return the axes of which a Slice takes a part; an end may be the extent of the batch."""
    starts, steps, batch = c.numbers("starts", 1), c.numbers("", 4), c.main().axis
    ends, kinds = c.attributes.get("ends"), np.full(len(starts), FREE)
    if ends is None:
        ends, kinds = (array.reshape(-1) for array in c.constant(2))
        c.extents_at.add(2)
    cut = []
    for place, axis in enumerate(c.numbers("axes", 3) or range(len(starts))):
        is_batch = axis % c.rank() == batch and ends[place] == c.shape()[batch]
        whole = kinds[place] == MULTIPLE and is_batch
        if kinds[place] and not whole:
            raise NotProvenError("it cuts where the batch's extent says")
        to_end = whole or ends[place] >= 2**31 - 1
        if starts[place] or not to_end or (steps and steps[place] != 1):
            cut.append(axis)
    return cut


def _resized(c: Node) -> Sequence[int]:
    axes = [axis % c.rank() for axis in c.attributes.get("axes", range(c.rank()))]
    if c.attributes.get("coordinate_transformation_mode") == "tf_crop_and_resize":
        raise NotProvenError("it crops along every axis")
    if c.main().axis not in axes:
        return ()
    if c.attributes.get("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise NotProvenError("it scales all axes alike")
    if c.name(3):
        requested = c.extents(3)
        return [axis for place, axis in enumerate(axes) if [place] != requested]
    scales = c.numbers("scales", 1 if c.node.op_type == "Upsample" or c.opset < 11 else 2)
    return [axis for axis, scale in zip(axes, scales, strict=True) if scale != 1]


# -- operators whose axes have other places in the results -----------------------------------------


def _broadcast(shape: Sequence[int]) -> list[Hashable]:
    """Label axes by their distance from the last one, but not those that are stretched."""
    return [None if size == 1 else axis - len(shape) for axis, size in enumerate(shape)]


def _elementwise(c: Node) -> Answer:
    shapes = {index: c.shape(index) for index, name in enumerate(c.inputs) if name}
    operands = {index: _broadcast(shape) for index, shape in shapes.items()}
    return operands, [range(-max(map(len, shapes.values())), 0)]


def _product(c: Node) -> Answer:
    """Multiply matrices, stacks of them, or vectors: the first input by one of the others."""
    right = 3 if c.node.op_type == "QLinearMatMul" else 1
    a, b = c.shape(0), c.shape(right)
    operands = {
        0: [*_broadcast(a[:-2]), *("row", None)[-len(a) :]],
        right: [*_broadcast(b[:-2]), *(None, "column")[: len(b)]],
    }
    # A vector on the left has no rows, one on the right no columns.
    outer = range(2 - max(len(a), len(b), 2), 0)
    return operands, [[*outer, *["row"][: len(a) - 1], *["column"][: len(b) - 1]]]


def _gemm(c: Node) -> Answer:
    operands: dict[int, Labels] = {
        0: "km" if c.attributes.get("transA") else "mk",
        1: "nk" if c.attributes.get("transB") else "kn",
    }
    if c.name(2):
        added = zip("mn"[2 - c.rank(2) :], c.shape(2), strict=True)
        operands[2] = [None if size == 1 else label for label, size in added]
    return operands, ["mn"]


def _einsum(c: Node) -> Answer:
    terms, arrow, result = str(c.attributes["equation"]).replace(" ", "").partition("->")
    if not arrow or "." in terms + result:
        raise NotProvenError("its equation names no axes of the result")
    return dict(enumerate(terms.split(","))), [result]


def _gather(c: Node) -> Answer:
    at, indices = c.axis(0), range(-c.rank(1), 0)
    data = [None if axis == at else axis for axis in range(c.rank())]
    return {0: data, 1: indices}, [[*data[:at], *indices, *data[at + 1 :]]]


def _gather_nd(c: Node) -> Answer:
    indices = [*range(c.rank(1) - 1), None]
    return {0: range(c.attributes.get("batch_dims", 0)), 1: indices}, [indices]


def _one_hot(c: Node) -> Answer:
    labels, at = range(c.rank()), c.axis(-1, c.rank() + 1)
    return {0: labels}, [[*labels[:at], None, *labels[at:]]]


def _recurrent(c: Node) -> Answer:
    """Label ``[steps, batch, features]``, and states ``[directions, batch, hidden]``."""
    if c.attributes.get("layout"):
        raise NotProvenError("it has the batch first")
    state = [None, "batch", None]
    operands = {0: state, 4: state[1:2], 5: state, 6: state}
    given = {index: labels for index, labels in operands.items() if c.name(index)}
    return given, [[None, *state], state, state]


def _reshape(c: Node) -> Answer:
    """Return the axis with as many elements before it as the batch has.

    ``[N, C, H, W]`` may become ``[N, C * H * W]``, or ``[N * C, H * W]`` with C rows a sample.
    """
    batch, op_type = c.main(), c.node.op_type
    if op_type == "Squeeze" and not c.name(1) and "axes" not in c.attributes:
        raise NotProvenError("it takes away the axis of a batch of 1")
    if op_type == "Reshape" and c.name(1):
        c.extents(1)
    elif c.batch(1) is not None:
        raise NotProvenError(f"its input {c.name(1)!r} has the batch, too")
    before = prod(c.shape()[: batch.axis])
    small, large = (c.values.shape(c.node.output[0], probe) for probe in (0, 1))
    for axis, (a, b) in enumerate(zip(small, large, strict=False)):
        if a != b and a % 2 == 0 and b * 2 == a * 3 and prod(small[:axis]) == before:
            return Batch(axis, a // 2)
    raise NotProvenError("it mixes the batch with other axes")


def _expand(c: Node) -> Answer:
    """Stretch a tensor to the extents of an input; for ConstantOfShape, a number."""
    asked = 1 if c.node.op_type == "Expand" else 0
    shape, batch = (c.shape(), c.batch(0)) if asked else ((), None)
    result = c.values.shape(c.node.output[0])
    axes = {axis + len(result) - c.constant(asked)[0].size for axis in c.extents(asked)}
    added = len(result) - len(shape)
    if batch is not None:
        axes.add(batch.axis + added)
    if len(axes) != 1:
        raise NotProvenError("it would have the batch on several axes")
    (axis,) = axes
    if batch is None and axis >= added and shape[axis - added] != 1:
        raise NotProvenError("it would have the batch on an axis with an extent")
    return Batch(axis, result[axis] // 2)


_ALONG = "it works along the axis of the batch"
_FIRST = "the batch is not on its first axis"
#: Operators, their rule, and the reason to refuse a batch along an axis that they mix.
_TABLE: tuple[tuple[Sequence[str], Callable[[Node], Answer], str], ...] = (
    (("Conv", "ConvInteger", "ConvTranspose", "DepthToSpace", "GlobalAveragePool", "GlobalLpPool",
      "GlobalMaxPool", "GroupNormalization", "InstanceNormalization", "LRN", "QLinearConv",
      "SpaceToDepth"), _mixing(lambda c: range(1, c.rank()), 0), _FIRST),
    (("GridSample",), _mixing(lambda c: range(1, c.rank()), 0, 1), _FIRST),
    (("DeformConv",), _mixing(lambda c: range(1, c.rank()), 0, 2, 4), _FIRST),
    (("AffineGrid",), _mixing(lambda c: range(c.extents(1) == [0], c.rank()), 0), _FIRST),
    (("AveragePool", "LpPool", "MaxPool"), _mixing(_pooled, 0), _FIRST),
    # In training, statistics are those of the whole batch.
    (("BatchNormalization",), _mixing(lambda c: (
        range(c.rank()) if c.attributes.get("training_mode") or c.results > 1 else (1,)), 0),
     _ALONG),
    (("DequantizeLinear", "QuantizeLinear"), _mixing(_quantized, 0),
     "it has a scale for each sample's place"),
    (("Hardmax", "LogSoftmax", "Softmax"), _mixing(
        lambda c: (c.axis(-1),) if c.opset >= 13 else range(c.axis(1), c.rank()), 0), _ALONG),
    (("LayerNormalization", "RMSNormalization"),
     _mixing(lambda c: range(c.axis(-1), c.rank()), 0), _ALONG),
    (("MeanVarianceNormalization",),
     _mixing(lambda c: c.attributes.get("axes", (0, 2, 3)), 0), _ALONG),
    (("Trilu",), _mixing(lambda c: (-2, -1), 0), _ALONG),
    (("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean",
      "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare"), _mixing(_reduced, 0), _ALONG),
    (("ArgMax", "ArgMin", "Split"), _mixing(lambda c: (c.axis(0),), 0), _ALONG),
    (("LpNormalization", "TopK"), _mixing(lambda c: (c.axis(-1),), 0), _ALONG),
    (("CumSum",), _mixing(lambda c: c.numbers("", 1), 0), _ALONG),
    (("Concat", "GatherElements", "Scatter", "ScatterElements"),
     _mixing(lambda c: (c.axis(0),)), _ALONG),
    (("Pad",), _mixing(_padded, 0), "it pads the batch"),
    (("Slice",), _mixing(_cut, 0), "it takes a part of the batch"),
    (("Tile",), _mixing(lambda c: [axis for axis, n in enumerate(c.numbers("", 1)) if n != 1], 0),
     "it repeats the batch"),
    (("Resize", "Upsample"), _mixing(_resized, 0), "it resizes the batch"),
    ((*ELEMENTWISE, "CastLike"), _elementwise, _ALONG),
    (("MatMul", "MatMulInteger", "QLinearMatMul"), _product, "it sums over the batch"),
    (("Gemm",), _gemm, "it sums over the batch"),
    (("Einsum",), _einsum, "it sums over the batch"),
    (("Gather",), _gather, _ALONG),
    (("GatherND",), _gather_nd, "its indices count in the whole batch"),
    (("OneHot",), _one_hot, _ALONG),
    (("Transpose",), lambda c: (
        {0: range(c.rank())}, [c.attributes.get("perm") or range(c.rank())[::-1]]), _ALONG),
    (("GRU", "LSTM", "RNN"), _recurrent, "the batch is not on its second axis"),
    (("Flatten", "Reshape", "Squeeze", "Unsqueeze"), _reshape, ""),
    (("ConstantOfShape", "Expand"), _expand, ""),
)  # fmt: skip
_RULES = {op_type: (rule, reason) for names, rule, reason in _TABLE for op_type in names}
