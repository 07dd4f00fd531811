"""Expansion of If, Loop and Scan: inline or select branches, unroll short loops.

Long loops, and loops whose trip count is computed, run in the virtual machine (:mod:`.vm_loops`).

ONNX's operators are specified at https://onnx.ai/onnx/operators/; :mod:`..expansion` describes how
expanders work.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

import numpy as np
import onnx

from ...ir.units import counted
from ..converter import InvalidNode, Refusal, normalized_axis
from ..expansion import Expansion, Nodes, conjunction, expands
from ..graph import Check, node_name
from ..nested import all_nodes, names_of
from ..source import DTYPES
from .vm_loops import Repeated, Rows, Slices, run_loop, try_loop

#: Most nodes to which a loop is unrolled that the virtual machine could run: so many are fused and
#: scheduled in seconds, and run without a check of the condition between iterations.
UNROLLED_NODES = 400


@expands("If")
def branch(c: Expansion) -> Nodes[None]:
    """Inline the branch that a constant condition chooses, else compute both and select.

    Operators have no side effects, so computing both is correct::

        before                                  after
        y = If(c, then: t = Relu(x)             choice/then/t = Relu(x)
                        return t                choice/else/e = Neg(x)
                  else: e = Neg(x)              y             = Where(c, choice/then/t,
                        return e)                                     choice/else/e)
    """
    truth = c.truth(c.inputs[0])
    bodies = {"then": c.body("then_branch"), "else": c.body("else_branch")}
    for body in bodies.values():
        if len(body.output) != len(c.node.output):
            raise InvalidNode(
                f"it has {counted(len(c.node.output), 'result')}, but a branch of it "
                f"{len(body.output)}"
            )
    wanted = [index for index in range(len(c.node.output)) if c.is_used(index)]
    label = None if truth is None else "then" if truth else "else"
    if label is None:
        condition = yield from c.scalar(c.inputs[0])
        opposite = yield from c.make("Not", [condition])
        begins = {each: f"{node_name(c.node)}/{each}/" for each in bodies}
        for left_out, is_taken in (("then", condition), ("else", opposite)):
            reason = c.graph.untaken.get(begins[left_out])
            if reason is not None:
                yield from _forbid(c, left_out, is_taken, reason)
                label = "else" if left_out == "then" else "then"
    if label is not None:
        results = yield from c.instance(bodies[label], label, {}, wanted)
        for index in wanted:
            yield from c.result(index, results[index])
        return
    c.graph.branches |= {begins["then"]: begins["else"], begins["else"]: begins["then"]}
    then = yield from c.instance(bodies["then"], "then", {}, wanted, condition=condition)
    otherwise = yield from c.instance(bodies["else"], "else", {}, wanted, condition=opposite)
    for index in wanted:
        what = "its branches' results"
        selected = yield from c.selected(condition, then[index], otherwise[index], what)
        yield from c.result(index, selected)


def _forbid(c: Expansion, label: str, is_taken: str, reason: str) -> Nodes[None]:
    """Record that a run which takes this branch is an error."""
    for outer in c.values.conditions:
        is_taken = yield from c.make("And", [outer, is_taken])
    taken = yield from c.make("Cast", [is_taken], to=onnx.TensorProto.INT64)
    text = f"its branch {label}_branch cannot be computed for the compiled shapes ({reason})"
    c.graph.checks.append(Check(taken, node_name(c.node), text))


@expands("Loop")
def loop(c: Expansion) -> Nodes[None]:
    """Unroll a short loop with a constant trip count, or whose condition becomes constantly false.

    If the condition is computed, all iterations are computed, and the state of those after it
    became false is discarded::

        before                                  after
        y = Loop(2, c, x,                       loop/0/b = Add(x, w)
                 body: (i, _, a) ->             loop/0/d = Less(loop/0/b, m)
                     b = Add(a, w)              s        = Where(c, loop/0/b, x)
                     d = Less(b, m)             e        = And(c, loop/0/d)
                     return d, b)               loop/1/b = Add(s, w)
                                                y        = Where(e, loop/1/b, s)

    Other loops run in the virtual machine; those that cannot, because their state grows, are
    unrolled if they are not too long.  As ONNX specifies, the condition that the body returns is
    ignored if the node has no condition as an input.
    """
    body, state = c.body("body"), c.inputs[2:]
    _check_body(body, len(state) + 2, len(state) + 1)
    given = c.inputs[1] if c.has(1) else ""
    trips: int | str | None = None
    if c.has(0):
        trips = c.inputs[0] if c.known(c.inputs[0]) is None else c.integer(0, "trip count")
    if trips is None and not given:
        raise Refusal("it has neither a trip count nor a condition")
    places = range(len(state), len(body.output) - 1)
    whole = Repeated(
        body, dict(zip(names_of(body.input)[2:], state, strict=True)), 1, trips, given,
        body.input[0], body.input[1],
        rows=[Rows(place + 1, place) for place in places if c.is_used(place)],
    )  # fmt: skip
    if isinstance(trips, str):
        yield from run_loop(c, whole)
    else:
        yield from _unrolled(c, whole, trips)


def _unrolled(c: Expansion, loop: Repeated, trips: int | None) -> Nodes[None]:
    """Unroll a loop, or have the virtual machine run it."""
    body, state, used = loop.body, list(loop.state.values()), [rows.result for rows in loop.rows]
    scans: dict[int, list[str]] = {place: [] for place in used}
    wanted = [*range(len(state) + 1), *(rows.place for rows in loop.rows)]
    nodes = sum(1 for _ in all_nodes(body.node))
    refused: Refusal | None = None
    # Exporters declare these inputs as scalars or as tensors with one axis.
    ranks = [len(value.type.tensor_type.shape.dim) for value in body.input[:2]]
    # `going` is the condition of the next iteration, "" without one; `returned` is the body's.
    going, returned = loop.condition, ""
    for number in count():
        truth = c.truth(going) if going else True
        if truth is False or (trips is not None and number >= trips):
            break
        must = truth is None and (trips is None or bool(used))
        total = number + 1 if truth else trips
        if refused is None and (must or (total or 0) * nodes > UNROLLED_NODES):
            unrolled, c.values.unrolled = c.values.unrolled, c.values.unrolled - number * nodes
            refused = yield from try_loop(c, loop)
            if refused is None:
                return
            if must:
                raise refused
            c.values.unrolled = unrolled
        if truth is None:
            going = yield from c.scalar(going)
        if going or not returned:
            # The condition is true in each iteration whose state is used.
            returned = c.constant(np.ones([1] * ranks[1], np.bool_), f"{number}/condition")
        index = c.constant(np.full([1] * ranks[0], number, np.int64), f"{number}/iteration")
        arguments = dict(zip(names_of(body.input), [index, returned, *state], strict=True))
        times = "unbounded" if trips is None else str(trips)
        returned, *results = yield from c.iteration(
            body, number, times, arguments, wanted,
            condition=going if truth is None else None, otherwise=refused,
        )  # fmt: skip
        for place, old in enumerate(state):
            new = results[place]
            if truth is None:
                new = yield from c.selected(going, new, old, "a state before and after it")
            state[place] = new
        for place, result in zip(used, results[len(state) :], strict=True):
            scans[place].append(result)
        if going:
            going = yield from conjunction(c, going, returned)
    for place, name in enumerate(state):
        yield from c.result(place, name)
    for place in used:
        name = yield from _scanned(c, scans[place], 0, body.output[place + 1])
        yield from c.result(place, name)


def _check_body(body: onnx.GraphProto, inputs: int, least: int) -> None:
    """Check that the body of a loop has this number of inputs, and enough results."""
    if len(body.input) != inputs or len(body.output) < least:
        raise InvalidNode(
            f"its body has {counted(len(body.input), 'input')} and "
            f"{counted(len(body.output), 'result')}, expected {inputs} and at least {least}"
        )


def _scanned(
    c: Expansion, names: Sequence[str], axis: int, declared: onnx.ValueInfoProto
) -> Nodes[str]:
    """Stack the results of a loop's iterations along a new axis.

    ``declared`` is the result's type in the body, for a loop without iterations.
    """
    if names:
        return (yield from c.stacked(names, axis))
    tensor = declared.type.tensor_type
    if tensor.elem_type not in DTYPES or not all(d.HasField("dim_value") for d in tensor.shape.dim):
        raise Refusal(f"it has no iterations, and its body says no shape for {declared.name!r}")
    shape = [dim.dim_value for dim in tensor.shape.dim]
    shape.insert(normalized_axis(axis, len(shape) + 1), 0)
    return c.constant(np.zeros(shape, DTYPES[tensor.elem_type]), "empty")


@expands("Scan")
def scan(c: Expansion) -> Nodes[None]:
    """Unroll a loop over the slices of tensors along an axis, unless it is long.

    ::

        before                                  after
        y = Scan(x : (2, 3),                    loop/0/s = Gather(x, 0)
                 body: s ->                     loop/0/b = Neg(loop/0/s)
                     b = Neg(s)                 ...
                     return b)                  y        = Concat(Reshape(loop/0/b, [1, 3]),
                                                                  Reshape(loop/1/b, [1, 3]))
    """
    if c.graph.opset < 9:
        yield from _batched_scan(c)
        return
    body, inputs = c.body("body"), int(c.attributes.get("num_scan_inputs", 0))
    state, scanned = _parted(c.inputs, inputs)
    outputs = len(body.output) - len(state)
    input_axes = _listed(c, "scan_input_axes", inputs)
    backward = _listed(c, "scan_input_directions", inputs)
    output_axes = _listed(c, "scan_output_axes", outputs)
    reverse = _listed(c, "scan_output_directions", outputs)
    axes, length = _scanned_axes(c, body, state, scanned, input_axes)
    refused = None
    if length * sum(1 for _ in all_nodes(body.node)) > UNROLLED_NODES:
        names = names_of(body.input)
        places = range(len(state), len(body.output))
        refused = yield from try_loop(c, Repeated(
            body, dict(zip(names, state, strict=False)), 0, length,
            slices=[
                Slices(name, tensor, axis, length, bool(back))
                for name, tensor, axis, back in zip(
                    names[len(state) :], scanned, axes, backward, strict=True)
            ],
            rows=[
                Rows(place, place, output_axes[place - len(state)],
                     bool(reverse[place - len(state)]))
                for place in places if c.is_used(place)
            ],
        ))  # fmt: skip
        if refused is None:
            return
    found = yield from _scan(
        c, state, scanned, "", input_axes=input_axes, backward=backward, otherwise=refused
    )
    for place, name in enumerate(found[0]):
        yield from c.result(place, name)
    for place, names in found[1].items():
        number = place - len(state)
        ordered = names[::-1] if reverse[number] else names
        name = yield from _scanned(c, ordered, output_axes[number], body.output[place])
        yield from c.result(place, name)


def _batched_scan(c: Expansion) -> Nodes[None]:
    """Unroll a Scan of operator set 8 along the second axis, for each sample of a batch.

    ONNX does not define results after the end of a shorter sequence, so all lengths must be full.
    """
    body, inputs = c.body("body"), int(c.attributes.get("num_scan_inputs", 0))
    state, scanned = _parted(c.inputs[1:], inputs)
    kinds = [c.type_of(name) for name in scanned]
    if not all(len(kind.shape) >= 2 for kind in kinds):
        raise InvalidNode("a scanned tensor has no axes of batch and time")
    batch, length = (c.extent(scanned[0], axis) for axis in range(2))
    if c.has(0):
        lengths = c.known(c.inputs[0])
        if lengths is None or not (lengths == length).all():
            raise Refusal("its sequences are not all known to have the full length")
    samples: list[list[str]] = [[] for _ in body.output]
    for sample in range(batch):
        sliced = []
        for name in (*state, *scanned):
            part = yield from _slice(c, name, 0, sample, f"{sample}")
            sliced.append(part)
        states, scans = yield from _scan(
            c, sliced[: len(state)], sliced[len(state) :], f"{sample}/",
            input_axes=[0] * inputs, backward=_listed(c, "directions", inputs),
        )  # fmt: skip
        for place, name in enumerate(states):
            samples[place].append(name)
        for place, names in scans.items():
            samples[place].append((yield from _scanned(c, names, 0, body.output[place])))
    for place, names in enumerate(samples):
        if c.is_used(place):
            name = yield from _scanned(c, names, 0, body.output[place])
            yield from c.result(place, name)


def _scan(
    c: Expansion, state: Sequence[str], scanned: Sequence[str], label: str, *,
    input_axes: Sequence[int], backward: Sequence[int], otherwise: Refusal | None = None,
) -> Nodes[tuple[list[str], dict[int, list[str]]]]:  # fmt: skip
    """Unroll a scan; return the last state, and each iteration's value of the used results."""
    body = c.body("body")
    axes, length = _scanned_axes(c, body, state, scanned, input_axes)
    used = [i for i in range(len(state), len(body.output)) if c.is_used(i)]
    scans: dict[int, list[str]] = {index: [] for index in used}
    state = list(state)
    for number in range(length):
        slices = []
        for name, axis, reverse in zip(scanned, axes, backward, strict=True):
            index = length - 1 - number if reverse else number
            slices.append((yield from _slice(c, name, axis, index, f"{label}{number}")))
        arguments = dict(zip(names_of(body.input), [*state, *slices], strict=True))
        results = yield from c.iteration(
            body,
            f"{label}{number}",
            str(length),
            arguments,
            [*range(len(state)), *used],
            otherwise=otherwise,
        )
        state = results[: len(state)]
        for index in used:
            scans[index].append(results[index])
    return state, scans


def _scanned_axes(
    c: Expansion,
    body: onnx.GraphProto,
    state: Sequence[str],
    scanned: Sequence[str],
    axes: Sequence[int],
) -> tuple[list[int], int]:
    """Return the scanned axes, counted from the front, and their common length."""
    _check_body(body, len(state) + len(scanned), len(state))
    found, lengths = [], set()
    for name, axis in zip(scanned, axes, strict=True):
        found.append(normalized_axis(axis, len(c.type_of(name).shape)))
        lengths.add(c.extent(name, found[-1]))
    if len(lengths) != 1:
        raise InvalidNode(f"the tensors that it scans have different lengths: {sorted(lengths)}")
    return found, lengths.pop()


def _slice(c: Expansion, name: str, axis: int, index: int, label: str) -> Nodes[str]:
    """Return a tensor's slice at one index of an axis, without that axis."""
    position = c.constant(np.array(index, np.int64), f"{label}/index")
    return (yield from c.make("Gather", [name, position], axis=axis))


def _parted(names: Sequence[str], scanned: int) -> tuple[list[str], list[str]]:
    """Split the names of a scan's inputs into states and scanned tensors."""
    if not 1 <= scanned <= len(names):
        raise InvalidNode(f"its attribute num_scan_inputs is {scanned}, of {len(names)} inputs")
    return list(names[:-scanned]), list(names[-scanned:])


def _listed(c: Expansion, attribute: str, length: int) -> list[int]:
    """Return an attribute that has one number for each tensor, all 0 by default."""
    numbers = list(c.attributes.get(attribute, [0] * length))
    if len(numbers) != length:
        raise InvalidNode(f"its attribute {attribute} has {len(numbers)} numbers, not {length}")
    return numbers
