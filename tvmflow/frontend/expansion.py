"""Expansion of control flow and sequences into plain nodes at import.

Relax gets neither.  A node such as Loop is *expanded* to nodes that compute its results: its
expansion is a generator, and the walk of :mod:`.propagate` infers the type of each yielded node, or
folds it, before it requests the next one.  An expansion therefore knows which of its values are
constant and acts on them: a loop ends when its condition becomes false::

    before                                         after
    y = Loop(2, True, x, body: (i, c, a) ->        loop/0/b = Add(x, w)
             b = Add(a, w); return c, b)           y        = Add(loop/0/b, w)
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import onnx
from onnx import helper

from ..ir.names import unique
from ..ir.operator import DOMAIN
from ..ir.operators import OPERATORS
from ..ir.tensors import TensorType
from ..ir.units import counted
from .converter import InvalidNode, Refusal, normalized_axis
from .graph import invalid, node_attributes, node_name, operator_name
from .nested import all_nodes, names_of, needed, reads, renamed
from .opsets import is_marked, raised
from .values import Values

#: Most nodes to which the loops of a model are unrolled.  Compile time grows with their square:
#: 1,200 nodes took 40 s on two cores, 4,000 take minutes.
MOST_NODES = 4_000

#: Most tensors that one Concat joins: some GPUs allow kernels only 64 pointers.
MOST_PARTS = 16

#: Operators that crash or read out of bounds for some values of an input: the index of that input,
#: and a value that is always valid.
_UNSAFE = {
    "Div": (1, 1), "Mod": (1, 1), "GatherElements": (1, 0), "GatherND": (1, 0), "RoiAlign": (2, 0),
    "Scatter": (1, 0), "ScatterElements": (1, 0), "ScatterND": (1, 0),
}  # fmt: skip

_T = TypeVar("_T")
#: Generator that yields nodes, which the walk handles at once, and returns names of their results.
Nodes = Generator[onnx.NodeProto, None, _T]


class _UnknownError(Exception):
    """Raised for an input without a type, because the node that computes it is refused."""


class InnerRefusal(Refusal):
    """Refusal of a node because nodes of its body are refused."""

    def __init__(self, problems: Sequence[tuple[str, str, str]]):
        operator, node, reason = problems[0]
        super().__init__(f"its node {node!r} ({operator}) is refused: {reason}")
        self.problems = problems


@dataclass
class Expansion:
    """A node to expand: its attributes, and its inputs by their resolved names."""

    node: onnx.NodeProto
    values: Values

    def __post_init__(self) -> None:
        self.graph = self.values.graph
        self.attributes = node_attributes(self.node)
        self.inputs = [self.values.resolve(name) for name in self.node.input]

    def has(self, index: int) -> bool:
        """Return whether an optional input is given."""
        return index < len(self.inputs) and bool(self.inputs[index])

    def is_used(self, index: int) -> bool:
        """Return whether a result is read."""
        return index < len(self.node.output) and self.node.output[index] in self.values.used

    def body(self, attribute: str) -> onnx.GraphProto:
        """Return a nested graph."""
        body = self.attributes.get(attribute)
        if not isinstance(body, onnx.GraphProto):
            raise InvalidNode(f"its attribute {attribute!r} is not a graph")
        return body

    # Values ------------------------------------------------------------------------------------

    def known(self, name: str) -> np.ndarray | None:
        """Return a tensor's values if they are constant."""
        return self.graph.constants.get(self.values.resolve(name))

    def type_of(self, name: str) -> TensorType:
        """Return a tensor's type."""
        name = self.values.resolve(name)
        if name in self.values.sequences:
            raise InvalidNode("a sequence or an empty optional is given for a tensor")
        if not self.values.is_known(name):
            raise _UnknownError
        return self.graph.type_of(name)

    def extent(self, name: str, axis: int) -> int:
        """Return a tensor's extent along an axis, counted from the front."""
        extent, here = self.type_of(name).shape[axis], self.values.bounded(name)
        if here is not None and here.axis == axis:
            raise Refusal(
                f"the number of elements of {name!r} along axis {axis}, from {here.maker}, is "
                "known only at run time"
            )
        return extent

    def sequence(self, name: str) -> tuple[str, ...]:
        """Return the names of a sequence's tensors."""
        name = self.values.resolve(name)
        if not self.values.is_known(name):
            raise _UnknownError
        found = self.values.sequences.get(name)
        if found is None:
            raise InvalidNode("a tensor or an empty optional is given for a sequence")
        return found

    def is_sequence(self, name: str) -> bool:
        """Return whether a value is a sequence, or an empty optional."""
        return self.values.resolve(name) in self.values.sequences

    def is_none(self, name: str) -> bool:
        """Return whether a value is an empty optional."""
        return self.is_sequence(name) and self.values.sequences[self.values.resolve(name)] is None

    def integer(self, index: int, what: str) -> int:
        """Return the value of an input that must be one constant integer."""
        value = self.known(self.inputs[index])
        if value is None:
            self.type_of(self.inputs[index])
            raise Refusal(f"its {what} is computed at run time")
        return int(_single(value, what))

    def truth(self, name: str) -> bool | None:
        """Return a condition's value if it is constant."""
        kind, value = self.type_of(name), self.known(name)
        if kind.elements != 1 or kind.dtype != "bool":
            raise InvalidNode(f"its condition is {kind}, expected one bool")
        return None if value is None else bool(_single(value, "condition"))

    def bound(self) -> tuple[str, int] | None:
        """Return the user's bound for the node or one of its results, and the name it is for."""
        return None if self.values.sizes is None else self.values.sizes.bound_of(self.node)

    # Nodes -------------------------------------------------------------------------------------

    def take(self, node: onnx.NodeProto, types: Sequence[TensorType]) -> None:
        """Add a node that is not an ONNX operator, with the types of its results."""
        assert self.values.sizes is not None
        self.values.sizes.emit_node(node, types)

    def mark_rows(
        self, name: str, axis: int, iterations: str, most: int, limit: tuple[str, int] | None
    ) -> None:
        """Record that a value has one row for each of at most ``most`` iterations."""
        assert self.values.sizes is not None
        self.values.sizes.mark_rows(self.node, name, axis, iterations, most, limit)

    def fresh(self, name: str) -> str:
        """Return an unused name that starts with the node's name."""
        return unique(f"{node_name(self.node)}/{name}", self.values.taken)

    def constant(self, array: np.ndarray, name: str = "constant") -> str:
        """Add a constant and return its name."""
        name = self.fresh(name)
        self.graph.constants[name] = array
        return name

    def make(self, op_type: str, inputs: Sequence[str], **attributes: object) -> Nodes[str]:
        """Add a node with one result and return its name."""
        if not onnx.defs.has(op_type, self.graph.opset, ""):
            raise Refusal(
                f"it needs {op_type}, which operator set {self.graph.opset} does not have"
            )
        name = self.fresh(op_type)
        yield helper.make_node(op_type, inputs, [name], name=name, **attributes)
        return self.values.resolve(name)

    def reshaped(self, name: str, shape: Sequence[int]) -> Nodes[str]:
        """Reshape a tensor and return the result's name."""
        if self.type_of(name).shape == tuple(shape):
            return name
        # An extent of 0 would mean "keep the extent", but tensors without elements never get here.
        extents = self.constant(np.array(shape, np.int64), "shape")
        return (yield from self.make("Reshape", [name, extents]))

    def scalar(self, name: str) -> Nodes[str]:
        """Reshape a tensor of one element to a scalar, which broadcasts to any shape."""
        return (yield from self.reshaped(name, ()))

    def stacked(self, names: Sequence[str], axis: int) -> Nodes[str]:
        """Stack tensors of one type along a new axis."""
        kind = self.type_of(names[0])
        axis = normalized_axis(axis, len(kind.shape) + 1)
        shape = [*kind.shape]
        shape.insert(axis, 1)
        parts = []
        for name in names:
            if self.type_of(name) != kind:
                raise Refusal(f"it stacks tensors of types {kind} and {self.type_of(name)}")
            parts.append((yield from self.reshaped(name, shape)))
        return (yield from self.concatenated(parts, axis))

    def concatenated(self, names: Sequence[str], axis: int) -> Nodes[str]:
        """Concatenate tensors along an axis, at most `MOST_PARTS` in one node."""
        parts = list(names)
        while len(parts) > 1:
            groups = [parts[i : i + MOST_PARTS] for i in range(0, len(parts), MOST_PARTS)]
            parts = []
            for group in groups:
                parts.append((yield from self.make("Concat", group, axis=axis)))
        return parts[0]

    def result(self, index: int, name: str) -> Nodes[None]:
        """Define a result of the node by an Identity, which the walk turns into an alias."""
        if index < len(self.node.output) and self.node.output[index]:
            yield helper.make_node("Identity", [name], [self.node.output[index]])

    def sequence_result(self, index: int, names: Iterable[str] | None) -> None:
        """Define a result of the node as a sequence of these tensors, or an empty optional."""
        if index < len(self.node.output) and self.node.output[index]:
            self.values.sequences[self.node.output[index]] = None if names is None else tuple(names)

    def instance(
        self, body: onnx.GraphProto, label: str, arguments: Mapping[str, str],
        wanted: Sequence[int], *, condition: str | None = None,
    ) -> Nodes[list[str]]:  # fmt: skip
        """Add a copy of a nested graph's nodes under new names, and return its results.

        ``arguments`` maps the graph's inputs to values; only the results with the indices
        ``wanted`` are computed.  The nodes are named ``NODE/LABEL/INNER``.  ``condition`` is
        computed at run time and false when ONNX does not run them.
        """
        outputs = names_of(body.output)
        names = dict(arguments)
        nodes = needed(list(body.node), [outputs[index] for index in wanted])
        for node in nodes:
            names.update((old, self.fresh(f"{label}/{old}")) for old in filter(None, node.output))
        copies = [renamed(node, names) for node in nodes]
        results = [names.get(name, name) for name in outputs]
        for copy in copies:
            if copy.name:
                copy.name = f"{node_name(self.node)}/{label}/{copy.name}"
            self.values.used.update(reads(copy))
        self.values.used.update(results)
        if condition is None:
            yield from copies
        else:
            self.values.conditions.append(condition)
            yield from copies
            self.values.conditions.pop()
        return [self.values.resolve(name) for name in results]

    def iteration(
        self, body: onnx.GraphProto, label: int | str, trips: str, arguments: Mapping[str, str],
        wanted: Sequence[int], *, condition: str | None = None, otherwise: Refusal | None = None,
    ) -> Nodes[list[str]]:  # fmt: skip
        """Add one iteration of a loop with :meth:`instance`; refuse a loop that is too long.

        ``trips`` describes the number of iterations in the refusal, ``otherwise`` is the reason why
        the virtual machine cannot run the loop.
        """
        count = sum(1 for _ in all_nodes(body.node))
        self.values.unrolled += count
        if self.values.unrolled > MOST_NODES:
            raise Refusal(
                f"its {trips} iterations of {counted(count, 'node')} exceed the {MOST_NODES} nodes "
                "that the loops of a model are unrolled to"
                + (f", and {otherwise}" if otherwise is not None else "")
            )
        return (yield from self.instance(body, str(label), arguments, wanted, condition=condition))

    def selected(self, condition: str, then: str, otherwise: str, what: str) -> Nodes[str]:
        """Select one of two values by a scalar condition that is computed at run time.

        The value that is not selected may be NaN or infinite.  If the values differ in the extent
        of one axis, that extent of the result is known only at run time; if they differ in more,
        the node is refused and ``what`` names both values in the reason.
        """
        if then == otherwise:
            return then
        if self.is_sequence(then) and self.is_sequence(otherwise):
            pair = [self.values.sequences[name] for name in (then, otherwise)]
            first, second = pair
            if first is not None and second is not None and len(first) == len(second):
                items = []
                for one, other in zip(first, second, strict=True):
                    items.append((yield from self.selected(condition, one, other, what)))
                name = self.fresh("sequence")
                self.values.sequences[name] = tuple(items)
                return name
            kinds = ["none" if s is None else counted(len(s), "tensor") for s in pair]
        elif self.is_sequence(then) or self.is_sequence(otherwise):
            kinds = ["a sequence" if self.is_sequence(n) else "a tensor" for n in (then, otherwise)]
        else:
            kinds = [str(self.type_of(name)) for name in (then, otherwise)]
            sizes = [here and here.size for here in map(self.values.bounded, (then, otherwise))]
            if kinds[0] == kinds[1] and sizes[0] == sizes[1]:
                return (yield from self.make("Where", [condition, then, otherwise]))
            names = [self.values.resolve(name) for name in (condition, then, otherwise)]
            found = self.values.sizes and self.values.sizes.selected(self.node, *names)
            if found:
                return found
        raise Refusal(
            f"its condition is computed at run time, and {what} differ: {kinds[0]} and {kinds[1]}"
        )


def conjunction(c: Expansion, first: str, second: str) -> Nodes[str]:
    """Compute the logical and of two conditions; constant ones need no node."""
    for one, other in ((first, second), (second, first)):
        truth = c.truth(one)
        if truth is not None:
            return other if truth else one
    first = yield from c.scalar(first)
    second = yield from c.scalar(second)
    return (yield from c.make("And", [first, second]))


#: Function that expands a node and defines its results.
Expander = Callable[[Expansion], Nodes[None]]
#: Expanders by operator; names have a domain unless it is ONNX's own.
EXPANDERS: dict[str, Expander] = {}


def expands(*op_types: str) -> Callable[[Expander], Expander]:
    """Register a generator function as the expander of operators."""

    def register(function: Expander) -> Expander:
        EXPANDERS.update(dict.fromkeys(op_types, function))
        return function

    return register


def expanded(nodes: Iterable[onnx.NodeProto], values: Values) -> Iterator[onnx.NodeProto]:
    """Yield the nodes, with control flow and operators on sequences expanded.

    Before it requests the next node, the walk records the results of the last one in the graph or
    in ``values.aliases``.

    Raises ``ModelError`` for a node that breaks ONNX's rules.
    """
    for node in nodes:
        if is_marked(node):
            yield from expanded(raised(node, values), values)
        elif operator_name(node) in EXPANDERS:
            yield from expanded(_expansion(node, values), values)
        elif values.conditions and not node.domain and node.op_type in _UNSAFE:
            yield from _safe(node, values)
        elif values.conditions and _is_checked(node):
            values.graph.refuse(
                node, "each call checks its inputs, also where the branch around it is not run"
            )
        else:
            yield node


def _expansion(node: onnx.NodeProto, values: Values) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of a node's expansion, up to the point where it is refused."""
    expansion = Expansion(node, values)
    if not all(values.is_known(name) for name in expansion.inputs if name):
        return  # a node that it depends on is refused
    try:
        yield from EXPANDERS[operator_name(node)](expansion)
    except _UnknownError:
        return
    except InvalidNode as broken:
        raise invalid(node, str(broken)) from None
    except InnerRefusal as refusal:
        values.graph.problems += refusal.problems
    except Refusal as refusal:
        values.graph.refuse(node, str(refusal))


def _is_checked(node: onnx.NodeProto) -> bool:
    """Return whether a custom operator checks the values of its inputs."""
    operator = OPERATORS.get(node.op_type) if node.domain == DOMAIN else None
    return operator is not None and operator.check is not None


def _safe(node: onnx.NodeProto, values: Values) -> Iterator[onnx.NodeProto]:
    """Yield a node with an operand that is valid even when ONNX would not run the node.

    ::

        before  y = If(c, then: Div(x, n), ...)        after  Div(x, Where(c, n, 1))
    """
    index, number = _UNSAFE[node.op_type]
    name = values.resolve(node.input[index])
    kind = values.graph.types.get(name)  # constants are checked instead
    if kind is not None and np.dtype(kind.dtype).kind in "iu":
        other = unique(f"{node_name(node)}/safe", values.taken)
        values.graph.constants[other] = np.array(number, kind.dtype)
        for condition in values.conditions:
            safe = unique(f"{node_name(node)}/operand", values.taken)
            yield helper.make_node("Where", [condition, name, other], [safe], name=safe)
            name = safe
        node = renamed(node, {})
        node.input[index] = name
    yield node


def _single(value: np.ndarray, what: str) -> np.ndarray:
    """Return the only element of an array."""
    if value.size != 1:
        raise InvalidNode(f"its {what} has {value.size} elements, expected one")
    return value.reshape(())
