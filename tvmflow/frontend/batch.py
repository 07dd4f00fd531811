"""Whether the samples of a batch are independent of each other, proven from the ONNX graph.

A module that was compiled for batches 4 and 1 may compute five samples as 4 + 1 only where no
sample's result depends on another sample, nor on how many there are.  The analysis follows the
batch through the nodes, before anything is folded: it knows of each value along which axis its
samples lie, or that it has nothing of the batch.  An operator whose rule does not say so, or that
has no rule, ends it: *not proven*, with the node and the reason.

Shapes are computed in many models (``Shape``, ``Gather``, ``Concat``, ``Reshape``).  Of each number
that comes from the batch's extent the analysis knows whether it is that extent times a constant,
or something else that depends on it; such numbers may be asked-for extents, and nothing else.

It looks at the model at two batches.  An axis has the batch only if its extent is the same multiple
of both, and all other extents agree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import prod
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from ..errors import TvmflowError
from ..runtime.json_types import JsonObject
from .expand_shapes import Shapes
from .graph import ELEMENTWISE, Graph, node_attributes, node_name
from .nested import reads
from .prepare import prepare
from .propagate import evaluated, propagate
from .source import Source


@dataclass(frozen=True)
class Batch:
    """Where the samples of a value lie: sample ``i`` has the extents from ``i * each`` on."""

    axis: int
    #: Extents of the axis that belong to one sample.
    each: int = 1


@dataclass(frozen=True)
class BatchProof:
    """The verdict on a model: where its inputs and outputs have the batch, or why nobody knows."""

    #: Those of the inputs that have a batch.
    inputs: Mapping[str, Batch]
    #: Of all outputs, if the independence of samples is proven; else none.
    outputs: Mapping[str, Batch]
    #: Empty if it is proven.
    reason: str = ""
    #: The node where the proof ends, if it is one.
    node: str = ""

    @property
    def proven(self) -> bool:
        """True if a batch may be computed in parts."""
        return not self.reason

    def report(self) -> JsonObject:
        """The verdict as JSON, for a module's metadata."""
        return {"proven": self.proven, **asdict(self)}


class _NotProvenError(Exception):
    """The reason why a node's samples are not known to be independent."""


#: Of a number in a shape: it has nothing of the batch, is a multiple of it, or depends on it.
_FREE, _MULTIPLE, _DEPENDS = 0, 1, 2


def prove_independence(source: Source, probes: Sequence[tuple[Shapes, Shapes]]) -> BatchProof:
    """Return the verdict on a model; ``probes`` are its shapes at two batches, 2 and 3.

    With several of them (of other extents), the first that is not proven is told.
    """
    proofs = [_Walk(source, *pair).run() for pair in probes]
    return next((proof for proof in proofs if not proof.proven), proofs[0])


class _Walk:
    """Follows the batch through a model, node by node."""

    def __init__(self, source: Source, small: Shapes, large: Shapes):
        self.source = source
        self.shapes = small, large
        #: Values with a batch.
        self.batches: dict[str, Batch] = {}
        #: Of numbers that come from shapes: what each has of the batch.
        self.kinds: dict[str, np.ndarray] = {}
        self.aliases: dict[str, str] = {}
        self.graphs: list[Graph] = []

    def run(self) -> BatchProof:
        inputs: dict[str, Batch] = {}
        node: onnx.NodeProto | None = None
        try:
            inputs = self._inputs()
            self.graphs = [prepare(self.source, shapes) for shapes in self.shapes]
            nodes, others = (list(graph.nodes) for graph in self.graphs)
            if [n.SerializeToString() for n in nodes] != [n.SerializeToString() for n in others]:
                raise _NotProvenError("the model has other nodes for another batch")
            outputs = list(self.graphs[0].outputs)
            for graph in self.graphs:
                propagate(graph)
            self.batches |= inputs
            for node in nodes:
                self._follow(node)
            node = None
            for name in outputs:
                if self.aliases.get(name, name) not in self.batches:
                    raise _NotProvenError(f"the output {name!r} has no axis for the batch")
            found = {name: self.batches[self.aliases.get(name, name)] for name in outputs}
        except _NotProvenError as reason:
            name = "" if node is None else f"{node_name(node)} ({node.op_type})"
            return BatchProof(inputs, {}, str(reason), name)
        except TvmflowError as error:
            # The compilation itself tells what is wrong with the model.
            return BatchProof(inputs, {}, f"the model has no other batches: {error.message}")
        return BatchProof(inputs, found)

    def _inputs(self) -> dict[str, Batch]:
        found = {}
        for name, small in self.shapes[0].items():
            axes = [n for n, pair in enumerate(zip(small, self.shapes[1][name], strict=True))
                    if pair[0] != pair[1]]  # fmt: skip
            if len(axes) > 1:
                raise _NotProvenError(f"the input {name!r} has the batch on several axes")
            if axes:
                found[name] = Batch(axes[0])
        return found

    # -- what is known of values --------------------------------------------------------------

    def batch(self, name: str) -> Batch | None:
        """Where a value has its samples; ``None`` if it has nothing of the batch."""
        if not name:
            return None
        name = self.aliases.get(name, name)
        if self.kinds.get(name, np.zeros(0)).any():
            raise _NotProvenError("it computes with the batch's extent")
        return self.batches.get(name)

    def shape(self, name: str, probe: int = 0) -> tuple[int, ...]:
        """The shape of a value at one of the two batches."""
        name = self.aliases.get(name, name)
        try:
            return self.graphs[probe].type_of(name).shape
        except KeyError:
            raise _NotProvenError("the shape of its result is not known") from None

    def constant(self, name: str) -> np.ndarray | None:
        """The values of a constant, also of one that is computed from shapes."""
        return self.graphs[0].constants.get(self.aliases.get(name, name))

    def kind(self, name: str) -> np.ndarray:
        """What each number of a constant has of the batch."""
        name = self.aliases.get(name, name)
        array = self.constant(name)
        if array is None:
            raise _NotProvenError("it needs a number that is known only at run time")
        return self.kinds.get(name, np.full(array.shape, _FREE))

    # -- nodes ----------------------------------------------------------------------------------

    def _follow(self, node: onnx.NodeProto) -> None:
        results = [name for name in node.output if name]
        given = [self.aliases.get(name, name) for name in reads(node) if name]
        if node.op_type in ("Identity", "Dropout") and not node.domain:
            if node.op_type == "Dropout" and len(node.input) > 2 and node.input[2]:
                raise _NotProvenError("it may be random")
            self.aliases[node.output[0]] = given[0]
            if given[0] in self.batches:
                self.batches |= dict.fromkeys(results[1:], self.batches[given[0]])
            return
        batched = any(name in self.batches for name in given)
        of_shapes = any(self.kinds[name].any() for name in given if name in self.kinds)
        if not batched and not of_shapes:
            return
        c = _Node(self, node)
        if node.domain:
            raise _NotProvenError("it is a custom operator")
        if node.op_type in ("Shape", "Size") and batched:
            self.kinds[results[0]] = _kinds_of_shape(c)
            return
        if not batched and (kinds := _kinds_of_numbers(c)) is not None:
            self.kinds[results[0]] = kinds
            return
        rule = _RULES.get(node.op_type)
        if rule is None:
            raise _NotProvenError("nothing is known of this operator")
        for name, batch in zip(node.output, _each(rule(c), len(node.output)), strict=True):
            if not name:
                continue
            self._check(name, batch)
            if batch is not None:
                self.batches[name] = batch

    def _check(self, name: str, batch: Batch | None) -> None:
        """Compare a rule's answer with the shapes at both batches."""
        small, large = (self.shape(name, probe) for probe in (0, 1))
        expected = list(small)
        if batch is not None and batch.axis < len(small):
            expected[batch.axis] = 3 * batch.each
            expected_small = 2 * batch.each
            if small[batch.axis] != expected_small:
                expected = []
        if list(large) != expected:
            raise _NotProvenError(
                f"its result is {list(small)} for a batch of 2 and {list(large)} for one of 3"
            )


#: What a rule gives: the batch of all results, or of each.
_Answer = Batch | None | list[Batch | None]


def _each(answer: _Answer, count: int) -> list[Batch | None]:
    return answer if isinstance(answer, list) else [answer] * count


class _Node:
    """A node, as rules look at it."""

    def __init__(self, walk: _Walk, node: onnx.NodeProto):
        self.walk, self.node = walk, node
        self.opset = walk.graphs[0].opset
        self.attributes = node_attributes(node)

    def name(self, index: int) -> str:
        return self.node.input[index] if index < len(self.node.input) else ""

    def batch(self, index: int) -> Batch | None:
        return self.walk.batch(self.name(index))

    def main(self) -> Batch:
        """The batch of the first input, which the others then do not decide."""
        batch = self.batch(0)
        if batch is None:
            raise _NotProvenError("an extent of its result depends on the batch")
        return batch

    def rank(self, index: int) -> int:
        return len(self.walk.shape(self.name(index)))

    def out_rank(self, index: int = 0) -> int:
        return len(self.walk.shape(self.node.output[index]))

    def shape(self, index: int, probe: int = 0) -> tuple[int, ...]:
        return self.walk.shape(self.name(index), probe)

    def free(self, *indices: int) -> None:
        """Refuse operands that have something of the batch."""
        for index in indices:
            if self.batch(index) is not None:
                raise _NotProvenError(f"its input {self.name(index)!r} has the batch, too")

    def broadcast(self, index: int, axis: int) -> None:
        """Refuse an operand without a batch that has an extent on its axis, counted from the last.

        Shape inference does not look at all of them.
        """
        if not self.name(index) or self.batch(index) is not None:
            return
        shape = self.shape(index)
        if len(shape) >= -axis and shape[axis] != 1:
            raise _NotProvenError(f"its input {self.name(index)!r} has an extent for the batch")

    def only(self, *indices: int) -> None:
        """Refuse all operands with a batch but these."""
        self.free(*(n for n in range(len(self.node.input)) if n not in indices))

    def agreeing(self, indices: Sequence[int]) -> Batch:
        """The batch that operands of equal rank have, all of them."""
        found = {self.batch(index) for index in indices}
        if len(found) != 1 or None in found:
            raise _NotProvenError("only some of its inputs have the batch, or on other axes")
        (batch,) = found
        assert batch is not None
        return batch

    def numbers(self, name: str, index: int | None = None) -> list[int] | None:
        """Numbers that an attribute has, or since some operator set an input: without a batch."""
        value = self.attributes.get(name)
        if value is None and index is not None and self.name(index):
            if self.walk.kind(self.name(index)).any():
                raise _NotProvenError("it computes with the batch's extent")
            array = self.walk.constant(self.name(index))
            assert array is not None
            value = array.reshape(-1).tolist()
        if value is None:
            return None
        return [int(v) for v in (value if isinstance(value, list) else [value])]

    def axis(self, default: int, rank: int | None = None) -> int:
        """The attribute ``axis``, counted from the first one."""
        axis = int(self.attributes.get("axis", default))
        return axis % (rank or self.rank(0)) if axis < 0 else axis


# -- numbers that come from shapes ---------------------------------------------------------------


def _kinds_of_shape(c: _Node) -> np.ndarray:
    batch, rank = c.main(), c.rank(0)
    if c.node.op_type == "Size":
        return np.array(_MULTIPLE)
    kinds = np.full(rank, _FREE)
    kinds[batch.axis] = _MULTIPLE
    start, end = c.attributes.get("start", 0), c.attributes.get("end", rank)
    return kinds[start:end]


#: Operators that only move numbers of their first input, or of all.
_MOVES = (
    "Cast", "Concat", "Flatten", "Gather", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze",
)  # fmt: skip


def _kinds_of_numbers(c: _Node) -> np.ndarray | None:
    """What a node's numbers, all known when compiling, have of the batch; ``None``: not such."""
    names, op_type = list(c.node.input), c.node.op_type
    arrays = [c.walk.constant(name) for name in names]
    result = c.walk.constant(c.node.output[0])
    if result is None or any(a is None for a, n in zip(arrays, names, strict=True) if n):
        return None
    kinds = [c.walk.kind(name) if name else np.zeros(0) for name in names]
    if op_type in _MOVES:
        moved = len(names) if op_type == "Concat" else 1
        if any(kind.any() for kind in kinds[moved:]):
            return np.full(result.shape, _DEPENDS)
        if op_type == "Cast" and c.attributes.get("to") == TensorProto.BOOL:
            return kinds[0] * 2
        given = {
            name: kinds[n].astype(np.int64) if n < moved else array
            for n, (name, array) in enumerate(zip(names, arrays, strict=True))
            if array is not None
        }
        # Two operands of one name have one kind.
        try:
            moved_kinds = evaluated(c.node, given, c.opset)[c.node.output[0]]
        except Exception as error:
            raise _NotProvenError("its numbers cannot be followed") from error
        return moved_kinds.astype(np.int64)
    whole = all(array is not None and array.dtype.kind in "iu" for array in arrays)
    if op_type in ("Mul", "Div", "Add", "Sub", "Equal") and whole:
        return _kinds_of_arithmetic(op_type, arrays, kinds, result.shape)
    if op_type == "Where" and not kinds[0].any():
        chosen = np.asarray(arrays[0], bool)
        return np.where(chosen, kinds[1], kinds[2])
    return None


def _kinds_of_arithmetic(
    op_type: str, arrays: Sequence[Any], kinds: Sequence[np.ndarray], shape: tuple[int, ...]
) -> np.ndarray:
    """A multiple of the batch stays one times a constant, or with another one added."""
    (a, b), (x, y) = (np.broadcast_arrays(*pair) for pair in (arrays, kinds))
    found = np.where((x == _FREE) & (y == _FREE), _FREE, _DEPENDS)
    one = (x == _MULTIPLE) & (y == _FREE), (x == _FREE) & (y == _MULTIPLE)
    if op_type == "Mul":
        found[one[0] | one[1]] = _MULTIPLE
    elif op_type == "Div":
        # At a batch of 2 the number is twice what belongs to a sample.
        whole = (b != 0) & (a % np.where(b == 0, 1, 2 * b) == 0)
        found[one[0] & whole] = _MULTIPLE
    elif op_type in ("Add", "Sub"):
        found[(x == _MULTIPLE) & (y == _MULTIPLE)] = _MULTIPLE
    else:
        # No batch is below one: exporters compare extents with -1.
        found[(one[0] & (a > 0) & (b <= 0)) | (one[1] & (b > 0) & (a <= 0))] = _FREE
    return found.reshape(shape)


def _asked_extents(c: _Node, index: int) -> list[int]:
    """Axes of a shape that an input asks for whose extents are multiples of the batch."""
    kinds = c.walk.kind(c.name(index)).reshape(-1)
    if (kinds == _DEPENDS).any():
        raise _NotProvenError("an extent that it asks for depends on the batch, and is no multiple")
    return [int(axis) for axis in np.flatnonzero(kinds == _MULTIPLE)]


# -- rules --------------------------------------------------------------------------------------


def _elementwise(c: _Node) -> Batch:
    """Broadcasting like NumPy: axes are counted from the last one."""
    rank = max(c.rank(index) for index in range(len(c.node.input)) if c.name(index))
    found = set()
    for index in range(len(c.node.input)):
        if (batch := c.batch(index)) is not None:
            found.add(Batch(batch.axis + rank - c.rank(index), batch.each))
    if len(found) != 1:
        raise _NotProvenError("its inputs have the batch on different axes")
    (batch,) = found
    for index in range(len(c.node.input)):
        c.broadcast(index, batch.axis - rank)
    return batch


def _outermost(c: _Node) -> Batch:
    """The first input has the batch on its first axis, and so have the results."""
    c.only(0)
    batch = c.main()
    if batch.axis != 0:
        raise _NotProvenError("the batch is not on its first axis")
    return batch


def _windows(c: _Node) -> Batch:
    if len([name for name in c.node.output if name]) > 1:
        raise _NotProvenError("it counts places in the whole batch")
    return _outermost(c)


def _batch_normalization(c: _Node) -> _Answer:
    if c.attributes.get("training_mode") or len([n for n in c.node.output if n]) > 1:
        raise _NotProvenError("it computes statistics of the whole batch")
    c.only(0)
    batch = c.main()
    if batch.axis == 1:
        raise _NotProvenError("the batch is on the axis of the channels")
    return batch


def _deformable(c: _Node) -> Batch:
    c.free(1, 3)
    batch = c.agreeing([n for n in (0, 2, 4) if c.name(n)])
    if batch.axis != 0:
        raise _NotProvenError("the batch is not on its first axis")
    return batch


def _grid_sample(c: _Node) -> Batch:
    batch = c.agreeing((0, 1))
    if batch.axis != 0:
        raise _NotProvenError("the batch is not on its first axis")
    return batch


def _affine_grid(c: _Node) -> Batch:
    if _asked_extents(c, 1) != [0]:
        raise _NotProvenError("the batch is not on its first axis")
    batch = c.main()
    if batch.axis != 0:
        raise _NotProvenError("the batch is not on its first axis")
    return batch


def _quantize(c: _Node) -> _Answer:
    c.only(0)
    batch = c.batch(0)
    if c.attributes.get("block_size") or c.rank(1) > 1:
        raise _NotProvenError("it has a scale for each block")
    if batch is not None and prod(c.shape(1)) > 1 and c.axis(1) == batch.axis:
        raise _NotProvenError("it has a scale for each sample's place")
    return batch


def _not_along(default: int, *, below: int = 13) -> Callable[[_Node], _Answer]:
    """Along one axis, that of the attribute; before operator set 13 along all from it on."""

    def rule(c: _Node) -> _Answer:
        c.only(0)
        batch = c.main()
        whole = c.opset < below
        axis = c.axis(1 if whole else default)
        if axis == batch.axis or (whole and axis <= batch.axis):
            raise _NotProvenError("it works along the axis of the batch")
        return batch

    return rule


def _behind(default: int) -> Callable[[_Node], _Answer]:
    """Along all axes from that of the attribute on."""

    def rule(c: _Node) -> _Answer:
        c.only(0)
        batch = c.main()
        if c.axis(default) <= batch.axis:
            raise _NotProvenError("it works along the axis of the batch")
        return batch

    return rule


def _mean_variance(c: _Node) -> _Answer:
    axes = c.attributes.get("axes", [0, 2, 3])
    batch = c.main()
    if batch.axis in [axis % c.rank(0) for axis in axes]:
        raise _NotProvenError("it works along the axis of the batch")
    return batch


def _reduction(c: _Node) -> _Answer:
    axes = c.numbers("axes", 1)
    batch = c.main()
    if not axes and c.attributes.get("noop_with_empty_axes"):
        return batch
    return _without(batch, [axis % c.rank(0) for axis in axes or range(c.rank(0))], c)


def _arg_extreme(c: _Node) -> _Answer:
    batch = c.main()
    return _without(batch, [c.axis(0)], c)


def _without(batch: Batch, axes: Sequence[int], c: _Node) -> Batch:
    if batch.axis in axes:
        raise _NotProvenError("it works along the axis of the batch")
    kept = c.attributes.get("keepdims", 1)
    return batch if kept else Batch(batch.axis - sum(a < batch.axis for a in axes), batch.each)


def _cumsum(c: _Node) -> _Answer:
    batch, axes = c.main(), c.numbers("", 1)
    if axes is None or axes[0] % c.rank(0) == batch.axis:
        raise _NotProvenError("it works along the axis of the batch")
    return batch


def _along_axis(default: int) -> Callable[[_Node], _Answer]:
    def rule(c: _Node) -> _Answer:
        c.only(0)
        batch = c.main()
        if c.axis(default) == batch.axis:
            raise _NotProvenError("it works along the axis of the batch")
        return batch

    return rule


def _concat(c: _Node) -> Batch:
    batch = c.agreeing(range(len(c.node.input)))
    if c.axis(0) == batch.axis:
        raise _NotProvenError("it works along the axis of the batch")
    return batch


def _pad(c: _Node) -> _Answer:
    batch, pads = c.main(), c.numbers("pads", 1)
    c.free(2)
    if pads is None:
        raise _NotProvenError("its pads are not known")
    count = c.rank(0)
    axes = c.numbers("", 3) or list(range(count))
    axes = [axis % count for axis in axes]
    if batch.axis in axes:
        place = axes.index(batch.axis)
        if pads[place] or pads[place + len(axes)]:
            raise _NotProvenError("it pads the batch")
    return batch


def _slice(c: _Node) -> _Answer:
    batch, rank = c.main(), c.rank(0)
    starts, steps = c.numbers("starts", 1), c.numbers("", 4)
    axes = c.numbers("axes", 3) or list(range(len(starts or ())))
    axes = [axis % rank for axis in axes]
    if batch.axis not in axes:
        # Ends may be anything but the batch's extent.
        c.numbers("ends", 2)
        return batch
    place = axes.index(batch.axis)
    step = steps[place] if steps else 1
    all_of_it = starts is not None and starts[place] == 0 and step == 1
    if "ends" in c.attributes:
        end = c.attributes["ends"][place]
    else:
        kinds, ends = c.walk.kind(c.name(2)), c.walk.constant(c.name(2))
        assert ends is not None
        end = int(ends.reshape(-1)[place])
        if kinds.any():
            others = np.delete(kinds.reshape(-1), place)
            whole = kinds.reshape(-1)[place] == _MULTIPLE and end == c.shape(0)[batch.axis]
            if others.any() or not whole:
                raise _NotProvenError("it cuts where the batch's extent says")
            end = 2**31
    if not all_of_it or end < 2**31 - 1:
        raise _NotProvenError("it takes a part of the batch")
    return batch


def _split(c: _Node) -> _Answer:
    c.only(0)
    batch = c.main()
    if c.axis(0) == batch.axis:
        raise _NotProvenError("it works along the axis of the batch")
    return batch


def _gather(c: _Node) -> Batch:
    data, indices, axis = c.batch(0), c.batch(1), c.axis(0)
    if data is not None and indices is not None:
        raise _NotProvenError("data and indices both have the batch")
    if indices is not None:
        return Batch(axis + indices.axis, indices.each)
    if data is None or data.axis == axis:
        raise _NotProvenError("it works along the axis of the batch")
    moved = data.axis if data.axis < axis else data.axis + c.rank(1) - 1
    return Batch(moved, data.each)


def _elements(c: _Node) -> Batch:
    batch = c.agreeing(range(len(c.node.input)))
    if c.axis(0) == batch.axis:
        raise _NotProvenError("it works along the axis of the batch")
    return batch


def _gather_nd(c: _Node) -> Batch:
    data, indices = c.batch(0), c.batch(1)
    if data is None and indices is not None and indices.axis < c.rank(1) - 1:
        return indices
    if data is None or data != indices or data.axis >= c.attributes.get("batch_dims", 0):
        raise _NotProvenError("its indices count in the whole batch")
    return data


def _one_hot(c: _Node) -> _Answer:
    c.only(0)
    batch = c.main()
    axis = c.axis(-1, c.rank(0) + 1)
    return Batch(batch.axis + (axis <= batch.axis), batch.each)


def _trilu(c: _Node) -> _Answer:
    c.only(0)
    batch = c.main()
    if batch.axis >= c.rank(0) - 2:
        raise _NotProvenError("it works along the axis of the batch")
    return batch


def _transpose(c: _Node) -> _Answer:
    batch = c.main()
    order = c.attributes.get("perm") or list(reversed(range(c.rank(0))))
    return Batch(order.index(batch.axis), batch.each)


def _reshape(c: _Node) -> Batch:
    """The batch stays where as many elements lie before its axis as did.

    ``[N, C, H, W]`` may become ``[N, C * H * W]``, or ``[N * C, H * W]`` with C rows a sample.
    """
    batch = c.main()
    if c.node.op_type == "Squeeze" and not c.name(1) and "axes" not in c.attributes:
        raise _NotProvenError("it takes away the axis of a batch of 1")
    if c.node.op_type == "Reshape" and c.name(1):
        _asked_extents(c, 1)
    else:
        c.only(0)
    before = prod(c.shape(0)[: batch.axis])
    small, large = (c.walk.shape(c.node.output[0], probe) for probe in (0, 1))
    if len(small) == len(large):
        for axis, (a, b) in enumerate(zip(small, large, strict=True)):
            if a != b and a % 2 == 0 and b * 2 == a * 3 and prod(small[:axis]) == before:
                return Batch(axis, a // 2)
    raise _NotProvenError("it mixes the batch with other axes")


def _expand(c: _Node) -> Batch:
    asked = _asked_extents(c, 1)
    rank, batch = c.out_rank(), c.batch(0)
    count = len(c.walk.kind(c.name(1)).reshape(-1))
    axes = {axis + rank - count for axis in asked}
    if batch is not None:
        axes.add(batch.axis + rank - c.rank(0))
    if len(axes) != 1:
        raise _NotProvenError("it would have the batch on several axes")
    (axis,) = axes
    each = c.walk.shape(c.node.output[0])[axis] // 2
    if batch is None and axis >= rank - c.rank(0) and c.shape(0)[axis - rank] != 1:
        raise _NotProvenError("it would have the batch on an axis with an extent")
    return Batch(axis, each)


def _constant_of_shape(c: _Node) -> Batch:
    asked = _asked_extents(c, 0)
    if len(asked) != 1:
        raise _NotProvenError("it would have the batch on several axes")
    return Batch(asked[0], c.walk.shape(c.node.output[0])[asked[0]] // 2)


def _tile(c: _Node) -> _Answer:
    batch, repeats = c.main(), c.numbers("", 1)
    if repeats is None or repeats[batch.axis] != 1:
        raise _NotProvenError("it repeats the batch")
    return batch


def _resize(c: _Node) -> _Answer:
    """Each axis is resized by itself, and that of the batch is not."""
    batch = c.main()
    if c.attributes.get("coordinate_transformation_mode") == "tf_crop_and_resize":
        raise _NotProvenError("it crops along every axis")
    upsample = c.node.op_type == "Upsample" or c.opset < 11
    scales, sizes = (1, None) if upsample else (2, 3)
    axes = [axis % c.rank(0) for axis in c.attributes.get("axes", range(c.rank(0)))]
    if batch.axis not in axes:
        return batch
    if c.attributes.get("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise _NotProvenError("it scales all axes alike")
    place = axes.index(batch.axis)
    if sizes is not None and c.name(sizes):
        if _asked_extents(c, sizes) != [place]:
            raise _NotProvenError("its extents depend on the batch")
        return batch
    array = c.attributes.get("scales")
    if array is None:
        name = c.name(scales)
        given = c.walk.constant(name) if name else None
        if given is None or c.walk.kind(name).any():
            raise _NotProvenError("its scales are not known")
        array = given.reshape(-1).tolist()
    if array[place] != 1:
        raise _NotProvenError("it resizes the batch")
    return batch


def _product(a: int, b: int) -> Callable[[_Node], _Answer]:
    """A product of matrices, whose operands are these inputs."""

    def rule(c: _Node) -> _Answer:
        c.only(a, b)
        left, right = c.batch(a), c.batch(b)
        ranks = c.rank(a), c.rank(b)
        # Of a vector, one axis that is contracted.
        rank = max(*ranks, 2)
        found = set()
        if left is not None:
            if left.axis == ranks[0] - 1:
                raise _NotProvenError("it sums over the batch")
            found.add((left.axis + rank - ranks[0], left.each))
        if right is not None:
            if right.axis == max(ranks[1] - 2, 0):
                raise _NotProvenError("it sums over the batch")
            found.add((right.axis + rank - ranks[1], right.each))
        both = left is not None and right is not None
        if len(found) != 1 or (both and next(iter(found))[0] >= rank - 2):
            raise _NotProvenError("its operands have the batch on different axes")
        ((axis, each),) = found
        # A vector on the right takes the last axis away, one on the left that before it.
        if ranks[0] == 1 and axis == rank - 1:
            axis -= 1
        return Batch(axis, each)

    return rule


def _gemm(c: _Node) -> Batch:
    left, right, added = c.batch(0), c.batch(1), c.batch(2)
    found = []
    if left is not None:
        if left.axis != (1 if c.attributes.get("transA") else 0):
            raise _NotProvenError("it sums over the batch")
        found.append(Batch(0, left.each))
    if right is not None:
        if right.axis != (0 if c.attributes.get("transB") else 1):
            raise _NotProvenError("it sums over the batch")
        found.append(Batch(1, right.each))
    if added is not None:
        found.append(Batch(added.axis + 2 - c.rank(2), added.each))
    if len(set(found)) != 1:
        raise _NotProvenError("its operands have the batch on different axes")
    c.broadcast(2, found[0].axis - 2)
    return found[0]


def _einsum(c: _Node) -> Batch:
    equation = str(c.attributes["equation"]).replace(" ", "")
    operands, arrow, result = equation.partition("->")
    if not arrow or "." in equation:
        raise _NotProvenError("its equation names no axes of the result")
    letters = {
        (term[batch.axis], batch.each)
        for index, term in enumerate(operands.split(","))
        if (batch := c.batch(index)) is not None
    }
    for index, term in enumerate(operands.split(",")):
        for letter, _ in letters:
            batch = c.batch(index)
            if letter in term and (batch is None or term.count(letter) > 1):
                raise _NotProvenError("its operands have the batch on different axes")
    if len(letters) != 1:
        raise _NotProvenError("its operands have the batch on different axes")
    ((letter, each),) = letters
    if result.count(letter) != 1:
        raise _NotProvenError("it sums over the batch")
    return Batch(result.index(letter), each)


def _recurrent(c: _Node) -> _Answer:
    """LSTM, GRU, RNN: ``[steps, batch, features]``, and states ``[directions, batch, hidden]``."""
    if c.attributes.get("layout"):
        raise _NotProvenError("it has the batch first")
    batch = c.main()
    if batch.axis != 1:
        raise _NotProvenError("the batch is not on its second axis")
    c.free(1, 2, 3, 7)
    if c.name(4) and c.batch(4) != Batch(0, batch.each):
        raise _NotProvenError("its lengths have no batch")
    for state in (5, 6):
        if c.name(state) and c.batch(state) != batch:
            raise _NotProvenError("its first state has no batch")
    results: list[Batch | None] = [Batch(2, batch.each), batch, batch]
    return results[: len(c.node.output)]


_REDUCTIONS = (
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean",
    "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare",
)  # fmt: skip

#: What each operator does with the batch; one that is not here ends the proof.
_RULES: dict[str, Callable[[_Node], _Answer]] = {
    **dict.fromkeys((*ELEMENTWISE, "CastLike"), _elementwise),
    **dict.fromkeys(_REDUCTIONS, _reduction),
    **dict.fromkeys(("Conv", "ConvInteger", "ConvTranspose", "QLinearConv"), _outermost),
    **dict.fromkeys(("AveragePool", "LpPool", "MaxPool"), _windows),
    **dict.fromkeys(("GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool"), _outermost),
    **dict.fromkeys(("GroupNormalization", "InstanceNormalization", "LRN"), _outermost),
    **dict.fromkeys(("DepthToSpace", "SpaceToDepth"), _outermost),
    **dict.fromkeys(("Hardmax", "LogSoftmax", "Softmax"), _not_along(-1)),
    **dict.fromkeys(("LayerNormalization", "RMSNormalization"), _behind(-1)),
    **dict.fromkeys(("ArgMax", "ArgMin"), _arg_extreme),
    **dict.fromkeys(("QuantizeLinear", "DequantizeLinear"), _quantize),
    **dict.fromkeys(("LpNormalization", "TopK"), _along_axis(-1)),
    **dict.fromkeys(("GatherElements", "Scatter", "ScatterElements"), _elements),
    **dict.fromkeys(("Flatten", "Reshape", "Squeeze", "Unsqueeze"), _reshape),
    **dict.fromkeys(("MatMul", "MatMulInteger"), _product(0, 1)),
    **dict.fromkeys(("Resize", "Upsample"), _resize),
    **dict.fromkeys(("GRU", "LSTM", "RNN"), _recurrent),
    "AffineGrid": _affine_grid,
    "BatchNormalization": _batch_normalization,
    "Concat": _concat,
    "ConstantOfShape": _constant_of_shape,
    "CumSum": _cumsum,
    "DeformConv": _deformable,
    "Einsum": _einsum,
    "Expand": _expand,
    "Gather": _gather,
    "GatherND": _gather_nd,
    "Gemm": _gemm,
    "GridSample": _grid_sample,
    "MeanVarianceNormalization": _mean_variance,
    "OneHot": _one_hot,
    "Pad": _pad,
    "QLinearMatMul": _product(0, 3),
    "Slice": _slice,
    "Split": _split,
    "Tile": _tile,
    "Transpose": _transpose,
    "Trilu": _trilu,
}
