"""Expansion of sequences and optional values to lists of tensors' names.

Relax gets neither: positions in a sequence and the number of its tensors must be constant, and a
model's inputs and outputs must be tensors::

    before                                     after
    s = SplitToSequence(x : (4, 3), split=2)   a, b = Split(x, [2, 2])
    y = SequenceAt(s, 1)                       y    = b

ONNX's operators are specified at https://onnx.ai/onnx/operators/; :mod:`..expansion` describes how
expanders work.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from onnx import helper

from ..converter import InvalidNode, Refusal, normalized_axis
from ..expansion import Expansion, Nodes, expands
from ..graph import lists_of
from ..nested import names_of


def _position(c: Expansion, index: int, length: int, *, end: bool = False) -> int:
    """Return an input as a position in a sequence of this length, or with ``end`` after it."""
    position = c.integer(index, "position")
    limit = length if end else length - 1
    if not -length <= position <= limit:
        raise InvalidNode(f"its position {position} is not within a sequence of length {length}")
    return position + length if position < 0 else position


@expands("SequenceConstruct", "SequenceEmpty")
def construct(c: Expansion) -> Nodes[None]:
    """Expand SequenceConstruct: create a sequence of tensors."""
    for name in c.inputs:
        c.type_of(name)
    c.sequence_result(0, c.inputs)
    yield from ()


@expands("SequenceInsert")
def insert(c: Expansion) -> Nodes[None]:
    """Insert a tensor before a position, by default at the end."""
    items = list(c.sequence(c.inputs[0]))
    place = _position(c, 2, len(items), end=True) if c.has(2) else len(items)
    c.type_of(c.inputs[1])
    c.sequence_result(0, [*items[:place], c.inputs[1], *items[place:]])
    yield from ()


@expands("SequenceErase")
def erase(c: Expansion) -> Nodes[None]:
    """Remove the tensor at a position, by default the last."""
    items = list(c.sequence(c.inputs[0]))
    if not items:
        raise InvalidNode("it removes a tensor from an empty sequence")
    place = _position(c, 1, len(items)) if c.has(1) else len(items) - 1
    c.sequence_result(0, [*items[:place], *items[place + 1 :]])
    yield from ()


@expands("SequenceAt")
def at(c: Expansion) -> Nodes[None]:
    """Return the tensor at a position."""
    items = c.sequence(c.inputs[0])
    yield from c.result(0, items[_position(c, 1, len(items))])


@expands("SequenceLength")
def length(c: Expansion) -> Nodes[None]:
    """Count a sequence's tensors."""
    count = np.array(len(c.sequence(c.inputs[0])), np.int64)
    yield from c.result(0, c.constant(count))


@expands("SplitToSequence")
def split(c: Expansion) -> Nodes[None]:
    """Split a tensor along an axis into parts of one length or of given lengths.

    Without lengths the parts have an extent of 1, or with ``keepdims=0`` lose the axis.
    """
    kind = c.type_of(c.inputs[0])
    axis = normalized_axis(c.attributes.get("axis", 0), len(kind.shape))
    extent = c.extent(c.inputs[0], axis)
    given = None
    if c.has(1):
        given = c.known(c.inputs[1])
        if given is None:
            c.type_of(c.inputs[1])
            raise Refusal("the lengths of its parts are computed at run time")
    lengths = [1] * extent if given is None else _lengths(given, extent)
    if not lengths:
        c.sequence_result(0, [])
        return
    parts = [c.inputs[0]]
    if len(lengths) > 1:
        parts = [c.fresh(f"{index}") for index in range(len(lengths))]
        given_lengths, older = lists_of(
            "Split", c.graph.opset, partial(c.constant, name="lengths"), split=lengths
        )
        inputs = [c.inputs[0], *given_lengths]
        yield helper.make_node("Split", inputs, parts, name=c.fresh("Split"), axis=axis, **older)
    if given is None and not c.attributes.get("keepdims", 1):
        shape = [*kind.shape[:axis], *kind.shape[axis + 1 :]]
        for index, part in enumerate(parts):
            parts[index] = yield from c.reshaped(part, shape)
    c.sequence_result(0, parts)


def _lengths(given: np.ndarray, extent: int) -> list[int]:
    """Return the lengths of the parts into which an extent is split."""
    lengths = [int(length) for length in given.reshape(-1)]
    if given.ndim == 0 and lengths[0] > 0:
        (most,) = lengths
        return [min(most, extent - start) for start in range(0, extent, most)]
    if given.ndim != 1 or min(lengths, default=0) < 0 or sum(lengths) != extent:
        raise InvalidNode(
            f"its parts have the lengths {given.tolist()}, which do not add up to {extent}"
        )
    return lengths


@expands("ConcatFromSequence")
def concatenate(c: Expansion) -> Nodes[None]:
    """Concatenate a sequence's tensors along an axis, or stack them along a new one."""
    items = c.sequence(c.inputs[0])
    if not items:
        raise InvalidNode("it concatenates an empty sequence")
    axis = c.attributes.get("axis")
    if axis is None:
        raise InvalidNode("its attribute 'axis' is missing")
    if c.attributes.get("new_axis", 0):
        yield from c.result(0, (yield from c.stacked(items, axis)))
        return
    axis = normalized_axis(axis, len(c.type_of(items[0]).shape))
    yield from c.result(0, (yield from c.concatenated(items, axis)))


@expands("SequenceMap")
def apply(c: Expansion) -> Nodes[None]:
    """Apply a nested graph to the tensors of one or more sequences of equal length."""
    body, first = c.body("body"), c.sequence(c.inputs[0])
    if len(body.input) != len(c.inputs) or len(body.output) < len(c.node.output):
        raise InvalidNode(
            f"it has {len(c.inputs)} inputs and {len(c.node.output)} results, but its body "
            f"{len(body.input)} and {len(body.output)}"
        )
    for name in filter(c.is_sequence, c.inputs):
        if len(c.sequence(name)) != len(first):
            raise InvalidNode(
                f"its sequences have {len(first)} and {len(c.sequence(name))} tensors"
            )
    mapped: list[list[str]] = [[] for _ in c.node.output]
    wanted = [index for index in range(len(mapped)) if c.is_used(index)]
    for number in range(len(first)):
        arguments = {
            inner: c.sequence(name)[number] if c.is_sequence(name) else name
            for inner, name in zip(names_of(body.input), c.inputs, strict=True)
        }
        results = yield from c.iteration(body, number, str(len(first)), arguments, wanted)
        for index in wanted:
            mapped[index].append(results[index])
    for index in wanted:
        c.sequence_result(index, mapped[index])


@expands("Optional")
def optional(c: Expansion) -> Nodes[None]:
    """Return the input, or an empty optional without one."""
    if c.has(0):
        yield from c.result(0, c.inputs[0])
    else:
        c.sequence_result(0, None)


@expands("OptionalHasElement")
def has_element(c: Expansion) -> Nodes[None]:
    """Return whether an optional has a value."""
    yield from c.result(0, c.constant(np.array(c.has(0) and not c.is_none(c.inputs[0]))))


@expands("OptionalGetElement")
def get_element(c: Expansion) -> Nodes[None]:
    """Return the value of an optional, which must not be empty."""
    if c.is_none(c.inputs[0]):
        raise InvalidNode("it reads the value of an empty optional")
    yield from c.result(0, c.inputs[0])
