"""Loops that TVM's virtual machine runs, as their trip count is known only at run time.

The body becomes a separate graph, which is compiled like a model.  Its inputs are the loop's state,
then the values that the body captures; its outputs are whether there is a next iteration, then the
new state.  It contains everything but the repetition itself: counting, the comparison with the trip
count, the slices that a Scan reads, and the rows that a loop collects::

    before                                  after
    y, z = Loop(n, c, x,                    _, k, y, z = RunLoop(c and 0 < n, 0, x, zeros[9], w, n)
             body: (i, _, a) ->             body: (i, a, rows, w, n) ->
                 b = Add(a, w)                  b = Add(a, w)
                 d = Less(b, m)                 d = Less(b, m)
                 s = Neg(b)                     s = Neg(b)
                 return d, b, s)                j = Add(i, 1)
                                                return d and j < n, j, b, Where(0..8 = i, s, rows)

Memory for a collected result is planned for the largest trip count or the user's bound.  Its first
``k`` rows are valid, where ``k`` is the number of iterations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx
from onnx import helper

from ...ir.limits import excess
from ...ir.tensors import TensorInfo, TensorType
from ..convert import to_relax
from ..converter import InvalidNode, Refusal, normalized_axis
from ..expansion import Expansion, InnerRefusal, Nodes, conjunction
from ..graph import RUN_LOOP, Graph, node_name
from ..nested import names_of, needed, reads, renamed
from ..propagate import call_checks, propagate

#: Trip counts starting here mean no limit: exporters write the largest integer for "while" loops.
ENDLESS = 1 << 40


@dataclass(frozen=True)
class Slices:
    """A scanned tensor, of which each iteration reads one slice as an input of the body."""

    input: str
    tensor: str
    axis: int
    length: int
    backward: bool = False


@dataclass(frozen=True)
class Rows:
    """A collected result, which has one row for each iteration along an axis.

    ``place`` is the index among the body's results, ``result`` among the node's.
    """

    place: int
    result: int
    axis: int = 0
    backward: bool = False


@dataclass(frozen=True)
class Repeated:
    """A loop: its body, and the names of its operands."""

    body: onnx.GraphProto
    #: Initial values of the state by inputs of the body; as many of the body's results, starting at
    #: `first_state`, are the next state.
    state: Mapping[str, str]
    first_state: int
    #: Trip count: a number, a value's name, or ``None``.
    trips: int | str | None
    #: Condition of the first iteration, in which case the body's first result is that of the next;
    #: empty without conditions.
    condition: str = ""
    #: Inputs of the body for the iteration's number and its condition, which is always true.
    number: onnx.ValueInfoProto | None = None
    condition_input: onnx.ValueInfoProto | None = None
    slices: Sequence[Slices] = ()
    rows: Sequence[Rows] = ()


def run_loop(c: Expansion, loop: Repeated) -> Nodes[None]:
    """Have the virtual machine run a loop, and define the node's results.

    Raises `Refusal` if it cannot, before any result is defined, so that the loop may be unrolled.
    """
    values = c.values
    if not values.has_machine:
        raise Refusal(
            "it would be a loop of TVM's virtual machine, which standalone libraries and CUDA "
            "graphs do not have"
        )
    if c.graph.opset < 9:
        raise Refusal(f"operator set {c.graph.opset} lacks what counts its iterations")
    yield from _Maker(c, loop).run()


def try_loop(c: Expansion, loop: Repeated) -> Nodes[Refusal | None]:
    """Have the virtual machine run a loop that could also be unrolled; return why it cannot."""
    try:
        yield from run_loop(c, loop)
    except InvalidNode:
        raise
    except Refusal as refusal:
        return refusal
    return None


class _Maker:
    """Builder of the body's graph and of the node that runs the loop."""

    def __init__(self, c: Expansion, loop: Repeated):
        self.c, self.loop = c, loop
        self.stem = node_name(c.node)
        self.limit = c.bound()
        trips = loop.trips
        self.trips = None if isinstance(trips, int) and trips >= ENDLESS else trips
        #: Whether the loop may end before its trip count, because its condition is computed.
        self.may_end = bool(loop.condition) and c.truth(loop.condition) is None
        self.names: dict[str, str] = {}
        self.constants: dict[str, np.ndarray] = {}

    def run(self) -> Nodes[None]:
        """Build the graph and the node, and define the results."""
        c, loop = self.c, self.loop
        states = {self._own(inner): outer for inner, outer in loop.state.items()}
        for outer in states.values():
            self._check_outer(outer, "its state")
        outputs = names_of(loop.body.output)
        places = range(loop.first_state, loop.first_state + len(states))
        wanted = [outputs[place] for place in (*places, *(rows.place for rows in loop.rows))]
        if loop.condition:
            wanted.insert(0, outputs[0])
        self.number = c.fresh("number")
        body = self._body_nodes(wanted)
        graph = self._graph(states, body, [self.names.get(name, name) for name in wanted])
        condition = graph.outputs.pop(0) if loop.condition else None
        changed, rows = graph.outputs[: len(states)], graph.outputs[len(states) :]
        for (inner, outer), after in zip(states.items(), changed, strict=True):
            before, kind = graph.type_of(inner), graph.type_of(after)
            if before != kind:
                raise Refusal(
                    f"its state {outer!r} is {before} before an iteration and {kind} after it, and "
                    "its number of iterations is not a small constant"
                )
        pairs = list(zip(loop.rows, rows, strict=True))
        wholes = [self._collected(each, graph.type_of(row)) for each, row in pairs]
        buffers = [
            self._buffer(graph, each, row, whole)
            for (each, row), whole in zip(pairs, wholes, strict=True)
            if whole.elements
        ]
        counts = self._count(graph, condition)
        inputs = {info.name: info for info in graph.inputs}
        state = [self.number, *states, *(name for name, _ in buffers)]
        captured = [name for name in inputs if name not in {self.number, *states}]
        kinds = [graph.type_of(name) for name in state]
        graph.outputs = [*counts, *changed, *(new for _, new in buffers)]
        graph.inputs = tuple(
            TensorInfo(name, graph.type_of(name).shape, graph.type_of(name).dtype)
            for name in (*state, *captured)
        )
        graph.drop_unused_nodes()
        start = yield from self._start()
        zeros = [c.constant(_zeros(graph.type_of(name)), "rows") for name, _ in buffers]
        first = c.constant(np.array(0, np.int64), "first")
        given = [start, first, *states.values(), *zeros, *captured]
        results = [c.fresh(name) for name in ("going", "iterations")]
        results += [c.fresh(f"state{index}") for index in range(len(states))]
        results += [c.fresh(f"rows{index}") for index in range(len(buffers))]
        name = c.fresh("loop")
        c.graph.loops[name] = graph
        node = helper.make_node(RUN_LOOP, given, results, name=name, loop=name)
        c.take(node, [TensorType((), "bool"), *kinds])
        found = results[2:]
        for index in range(len(states)):
            yield from c.result(index, found[index])
        collected = iter(found[len(states) :])
        for rows_of, whole in zip(loop.rows, wholes, strict=True):
            result = next(collected) if whole.elements else c.constant(_zeros(whole), "rows")
            if not isinstance(self.trips, int) or self.may_end:
                most = self.trips if isinstance(self.trips, int) else ENDLESS
                c.mark_rows(result, rows_of.axis, results[1], most, self.limit)
            yield from c.result(rows_of.result, result)

    def _own(self, name: str) -> str:
        """Return the name of a value of the body in the graph."""
        if name not in self.names:
            self.names[name] = self.c.fresh(f"body/{name}")
        return self.names[name]

    def _constant(self, array: np.ndarray) -> str:
        name = self.c.fresh("body/constant")
        self.constants[name] = array
        return name

    def _check_outer(self, name: str, what: str) -> None:
        """Refuse a value that the body cannot take from the graph around it."""
        values = self.c.values
        if values.resolve(name) in values.sequences:
            raise Refusal(f"{what} {name!r} is a sequence, and its iterations are not unrolled")
        here = values.bounded(name)
        if here is not None:
            raise Refusal(
                f"{what} {name!r} has a number of elements, from {here.maker}, that is known only "
                "at run time"
            )
        self.c.type_of(name)

    def _body_nodes(self, wanted: Sequence[str]) -> list[onnx.NodeProto]:
        """Return the nodes of an iteration, after the nodes that compute their inputs."""
        loop, before = self.loop, []
        if loop.number is not None:
            before += self._with_axes(self.number, loop.number)
        if loop.condition_input is not None:
            rank = len(loop.condition_input.type.tensor_type.shape.dim)
            self.constants[self._own(loop.condition_input.name)] = np.ones([1] * rank, np.bool_)
        for each in loop.slices:
            self._check_outer(each.tensor, "the scanned tensor")
            index = self.number
            if each.backward:
                last, index = self._constant(np.array(each.length - 1)), self.c.fresh("body/index")
                before.append(helper.make_node("Sub", [last, self.number], [index], name=index))
            tensor = self.c.values.resolve(each.tensor)
            name = self._own(each.input)
            before.append(
                helper.make_node("Gather", [tensor, index], [name], name=name, axis=each.axis)
            )
        nodes = needed(list(loop.body.node), wanted)
        for node in nodes:
            for name in filter(None, node.output):
                self._own(name)
        copies = [renamed(node, self.names) for node in nodes]
        for copy in copies:
            if copy.name:
                copy.name = f"{self.stem}/body/{copy.name}"
        return [*before, *copies]

    def _with_axes(self, name: str, info: onnx.ValueInfoProto) -> list[onnx.NodeProto]:
        """Reshape a scalar to the declared rank of an input of the body."""
        rank = len(info.type.tensor_type.shape.dim)
        if not rank:
            self.names[info.name] = name
            return []
        shape, own = self._constant(np.ones(rank, np.int64)), self._own(info.name)
        return [helper.make_node("Reshape", [name, shape], [own], name=own)]

    def _graph(
        self, states: Mapping[str, str], nodes: list[onnx.NodeProto], outputs: list[str]
    ) -> Graph:
        """Return the graph of an iteration, with inferred types."""
        c, outer = self.c, self.c.graph
        made = {name for node in nodes for name in node.output} | set(states) | {self.number}
        read = [*(name for node in nodes for name in reads(node)), *outputs]
        infos = {self.number: TensorType((), "int64")}
        infos |= {inner: c.type_of(name) for inner, name in states.items()}
        constants, aliases = dict(self.constants), {}
        # The value of a state without elements is known.
        constants |= {n: _zeros(kind) for n, kind in infos.items() if not kind.elements}
        for name in dict.fromkeys(filter(None, read)):
            if name in made or name in constants:
                continue
            self._check_outer(name, "the captured value")
            known = c.known(name)
            resolved = c.values.resolve(name)
            aliases[name] = resolved
            if known is None:
                infos[resolved] = c.type_of(name)
            else:
                constants[resolved] = known
        graph = Graph(
            outer.name, outer.opset,
            inputs=tuple(TensorInfo(n, kind.shape, kind.dtype) for n, kind in infos.items()),
            outputs=[aliases.get(name, name) for name in outputs],
            nodes=[renamed(node, aliases) for node in nodes],
            constants=constants,
            large_weight_bytes=outer.large_weight_bytes,
            types=infos,
            origins={n: o for n, o in outer.origins.items() if n in constants},
        )  # fmt: skip
        propagate(graph)
        # Convert on trial: a loop that fails may still compile unrolled, with a constant number.
        trial = replace(graph, nodes=[renamed(n, {}) for n in graph.nodes], loops={})
        if not graph.problems:
            to_relax(trial)
        if trial.problems:
            raise InnerRefusal(trial.problems)
        if graph.counts:
            raise Refusal(
                "its state after an iteration has a number of elements that is known only "
                "at run time"
            )
        if checks := call_checks(graph):
            raise Refusal(
                f"each call checks the inputs of its node {checks[0].node!r}, which it cannot "
                "within a loop"
            )
        return graph

    def _added(self, graph: Graph, op_type: str, inputs: Sequence[str], kind: TensorType) -> str:
        """Add a node after the body's nodes, and return the name of its result."""
        name = self.c.fresh(f"body/{op_type}")
        graph.nodes.append(helper.make_node(op_type, inputs, [name], name=name))
        graph.types[name] = kind
        return name

    def _made(self, graph: Graph, array: np.ndarray) -> str:
        name = self.c.fresh("body/constant")
        graph.constants[name] = array
        return name

    def _reshaped(self, graph: Graph, name: str, shape: Sequence[int]) -> str:
        kind = graph.type_of(name)
        if kind.shape == tuple(shape):
            return name
        if name in graph.constants:
            return self._made(graph, graph.constants[name].reshape(shape))
        extents = self._made(graph, np.array(shape, np.int64))
        return self._added(graph, "Reshape", [name, extents], TensorType(tuple(shape), kind.dtype))

    def _count(self, graph: Graph, condition: str | None) -> list[str]:
        """Compute whether there is another iteration, and its number."""
        scalar = TensorType((), "bool")
        number = TensorType((), "int64")
        one = self._made(graph, np.array(1, np.int64))
        after = self._added(graph, "Add", [self.number, one], number)
        conditions = []
        if condition is not None:
            kind = graph.type_of(condition)
            if kind.elements != 1 or kind.dtype != "bool":
                raise InvalidNode(f"its condition is {kind}, expected one bool")
            if condition not in graph.constants:
                self.may_end = True
                conditions.append(self._reshaped(graph, condition, ()))
            elif not graph.constants[condition].all():
                self.may_end = True
                return [self._made(graph, np.array(False)), after]
        if self.trips is not None:
            trips = self._trips_within(graph)
            conditions.append(self._added(graph, "Less", [after, trips], scalar))
        if not conditions:
            raise Refusal("its condition is never false, and no trip count bounds it")
        going = conditions[0]
        for other in conditions[1:]:
            going = self._added(graph, "And", [going, other], scalar)
        return [going, after]

    def _trips_within(self, graph: Graph) -> str:
        """Return the trip count as a scalar of the body's graph."""
        if isinstance(self.trips, int):
            return self._made(graph, np.array(self.trips, np.int64))
        assert self.trips is not None
        kind, name = self.c.type_of(self.trips), self.c.values.resolve(self.trips)
        if kind.elements != 1 or kind.dtype != "int64":
            raise InvalidNode(f"its trip count is {kind}, expected one int64")
        if name not in graph.types:
            graph.types[name] = kind
            graph.inputs = (*graph.inputs, TensorInfo(name, kind.shape, kind.dtype))
        return self._reshaped(graph, name, ())

    def _start(self) -> Nodes[str]:
        """Compute whether there is a first iteration; there is none in a branch that is not run."""
        c, loop = self.c, self.loop
        conditions = [*c.values.conditions, *([loop.condition] if loop.condition else [])]
        if isinstance(self.trips, str):
            zero = c.constant(np.array(0, np.int64), "zero")
            trips = yield from c.scalar(self.trips)
            conditions.append((yield from c.make("Less", [zero, trips])))
        if not conditions:
            return c.constant(np.array(True), "start")
        going = conditions[0]
        for other in conditions[1:]:
            going = yield from conjunction(c, going, other)
        return (yield from c.scalar(going))

    def _collected(self, rows: Rows, kind: TensorType) -> TensorType:
        """Return the type of a collected result with rows of this type."""
        axis = normalized_axis(rows.axis, len(kind.shape) + 1)
        extents = (*kind.shape[:axis], self._extent(rows), *kind.shape[axis:])
        whole = TensorType(extents, kind.dtype)
        if excess(whole) is not None:
            raise self._unbounded(rows)
        return whole

    def _buffer(self, graph: Graph, rows: Rows, row: str, whole: TensorType) -> tuple[str, str]:
        """Add the collection of a row; return the collected rows before and after the iteration."""
        rank = len(whole.shape)
        axis = rows.axis % rank
        extent = whole.shape[axis]
        before = self.c.fresh("body/rows")
        graph.types[before] = whole
        places = np.arange(extent)[::-1] if rows.backward else np.arange(extent)
        along = [extent if a == axis else 1 for a in range(rank)]
        iota = self._made(graph, places.reshape(along).astype(np.int64))
        here = TensorType(tuple(along), "bool")
        mask = self._added(graph, "Equal", [iota, self.number], here)
        new = self._reshaped(graph, row, [1 if a == axis else e for a, e in enumerate(whole.shape)])
        return before, self._added(graph, "Where", [mask, new, before], whole)

    def _extent(self, rows: Rows) -> int:
        """Return the number of rows for which memory is planned."""
        most = self.trips if isinstance(self.trips, int) else None
        if self.limit is None and most is None:
            raise self._unbounded(rows)
        given = [n for n in (most, self.limit and self.limit[1]) if n is not None]
        return min(given)

    def _unbounded(self, rows: Rows) -> Refusal:
        result = self.c.node.output[rows.result]
        return Refusal(
            f"its number of iterations is known only at run time, and its result {result!r} has a "
            f"row of each: give the largest number that can be (`bounds={self.stem}=1000`)"
        )


def _zeros(kind: TensorType) -> np.ndarray:
    return np.zeros(kind.shape, kind.dtype)
