"""If, Loop and Scan: branches are inlined or selected from, loops unrolled.

ONNX's operators are specified at https://onnx.ai/onnx/operators/; :mod:`.expansion` says how nodes
are put in their place.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

import numpy as np
import onnx

from ..ir.units import counted
from .converter import InvalidNode, Refusal, normalized_axis
from .expansion import Expansion, Nodes, expands
from .nested import names_of
from .source import DTYPES


@expands("If")
def branch(c: Expansion) -> Nodes[None]:
    """Inline the branch that a constant condition chooses, else compute both and select.

    Operators have no effects, so that computing both is right::

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
    if truth is not None:
        label = "then" if truth else "else"
        results = yield from c.instance(bodies[label], label, {}, wanted)
        for index in wanted:
            yield from c.result(index, results[index])
        return
    condition = yield from c.scalar(c.inputs[0])
    opposite = yield from c.make("Not", [condition])
    then = yield from c.instance(bodies["then"], "then", {}, wanted, condition=condition)
    otherwise = yield from c.instance(bodies["else"], "else", {}, wanted, condition=opposite)
    for index in wanted:
        what = "its branches' results"
        selected = yield from c.selected(condition, then[index], otherwise[index], what)
        yield from c.result(index, selected)


@expands("Loop")
def loop(c: Expansion) -> Nodes[None]:
    """Unroll a loop with a constant trip count, or whose condition becomes false while unrolled.

    Where the condition is computed, the iterations behind the one that makes it false are computed,
    too, and what they make of the state is dropped::

        before                                  after
        y = Loop(2, c, x,                       loop/0/b = Add(x, w)
                 body: (i, _, a) ->             loop/0/d = Less(loop/0/b, m)
                     b = Add(a, w)              s        = Where(c, loop/0/b, x)
                     d = Less(b, m)             e        = And(c, loop/0/d)
                     return d, b)               loop/1/b = Add(s, w)
                                                y        = Where(e, loop/1/b, s)

    As ONNX has it, what the body returns as condition is ignored where the node is given none.
    """
    body, state = c.body("body"), c.inputs[2:]
    trips = c.integer(0, "trip count") if c.has(0) else None
    _check_body(c, body, len(state) + 2, len(state) + 1)
    scans: dict[int, list[str]] = {i: [] for i in range(len(state), len(body.output) - 1)}
    used = [index for index in scans if c.is_used(index)]
    wanted = [*range(len(state) + 1), *(index + 1 for index in used)]
    # Scalars, or tensors with one axis: exporters have both.
    ranks = [len(value.type.tensor_type.shape.dim) for value in body.input[:2]]
    # The condition of the next iteration, "" where there is none; and what the body returned.
    going, told = (c.inputs[1] if c.has(1) else ""), ""
    if trips is None and not going:
        raise Refusal("it has neither a trip count nor a condition")
    for number in count():
        truth = c.truth(going) if going else True
        if truth is False or (trips is not None and number >= trips):
            break
        if truth is None:
            if trips is None:
                raise Refusal("its condition is computed at run time, and no trip count bounds it")
            if used:
                raise Refusal(
                    "its condition is computed at run time, on which the extent of its result "
                    f"{c.node.output[used[0]]!r} depends"
                )
            going = yield from c.scalar(going)
        if going or not told:
            # An iteration that counts has a true condition.
            told = c.constant(np.ones([1] * ranks[1], np.bool_), f"{number}/condition")
        index = c.constant(np.full([1] * ranks[0], number, np.int64), f"{number}/iteration")
        arguments = dict(zip(names_of(body.input), [index, told, *state], strict=True))
        times = "unbounded" if trips is None else str(trips)
        told, *results = yield from c.iteration(
            body, number, times, arguments, wanted, condition=going if truth is None else None
        )
        for place, old in enumerate(state):
            new = results[place]
            if truth is None:
                new = yield from c.selected(going, new, old, "a state before and after it")
            state[place] = new
        for place in used:
            scans[place].append(results[place])
        if going:
            going = yield from _conjunction(c, going, told)
    for place, name in enumerate(state):
        yield from c.result(place, name)
    for place in used:
        name = yield from _scanned(c, scans[place], 0, body.output[place + 1])
        yield from c.result(place, name)


def _conjunction(c: Expansion, first: str, second: str) -> Nodes[str]:
    """Return whether both of two conditions hold."""
    for one, other in ((first, second), (second, first)):
        truth = c.truth(one)
        if truth is not None:
            return other if truth else one
    second = yield from c.scalar(second)
    return (yield from c.make("And", [first, second]))


def _check_body(c: Expansion, body: onnx.GraphProto, inputs: int, least: int) -> None:
    """Check how many inputs the body of a loop has, and how many results beside the state."""
    if len(body.input) != inputs or len(body.output) < least:
        raise InvalidNode(
            f"its body has {counted(len(body.input), 'input')} and "
            f"{counted(len(body.output), 'result')}, expected {inputs} and at least {least}"
        )


def _scanned(
    c: Expansion, names: Sequence[str], axis: int, declared: onnx.ValueInfoProto
) -> Nodes[str]:
    """Return what the iterations of a loop have made, along a new axis.

    ``declared`` is its type in the body, for a loop without iterations.
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
    """Unroll a loop over the slices of tensors along an axis.

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
    state, scanned = _parted(c, c.inputs, inputs)
    outputs = len(body.output) - len(state)
    found = yield from _scan(
        c, state, scanned, "",
        input_axes=_listed(c, "scan_input_axes", inputs),
        backward=_listed(c, "scan_input_directions", inputs),
    )  # fmt: skip
    output_axes = _listed(c, "scan_output_axes", outputs)
    reverse = _listed(c, "scan_output_directions", outputs)
    for place, name in enumerate(found[0]):
        yield from c.result(place, name)
    for place, names in found[1].items():
        number = place - len(state)
        ordered = names[::-1] if reverse[number] else names
        name = yield from _scanned(c, ordered, output_axes[number], body.output[place])
        yield from c.result(place, name)


def _batched_scan(c: Expansion) -> Nodes[None]:
    """Unroll a Scan of operator set 8: for each sample of a batch, along the second axis.

    ONNX does not say what behind the end of a shorter sequence is: only full ones are taken.
    """
    body, inputs = c.body("body"), int(c.attributes.get("num_scan_inputs", 0))
    state, scanned = _parted(c, c.inputs[1:], inputs)
    kinds = [c.type_of(name) for name in scanned]
    if not all(len(kind.shape) >= 2 for kind in kinds):
        raise InvalidNode("a tensor that it scans has no axis of batch and time")
    batch, length = kinds[0].shape[:2]
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
    input_axes: Sequence[int], backward: Sequence[int],
) -> Nodes[tuple[list[str], dict[int, list[str]]]]:  # fmt: skip
    """Unroll a scan; return the state, and what each iteration made of the results in use."""
    body = c.body("body")
    _check_body(c, body, len(state) + len(scanned), len(state))
    axes, lengths = [], set()
    for name, axis in zip(scanned, input_axes, strict=True):
        shape = c.type_of(name).shape
        axes.append(normalized_axis(axis, len(shape)))
        lengths.add(shape[axes[-1]])
    if len(lengths) != 1:
        raise InvalidNode(f"the tensors that it scans have different lengths: {sorted(lengths)}")
    (length,) = lengths
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
            body, f"{label}{number}", str(length), arguments, [*range(len(state)), *used]
        )
        state = results[: len(state)]
        for index in used:
            scans[index].append(results[index])
    return state, scans


def _slice(c: Expansion, name: str, axis: int, index: int, label: str) -> Nodes[str]:
    """Return what a tensor has at one place of an axis, without that axis."""
    position = c.constant(np.array(index, np.int64), f"{label}/index")
    return (yield from c.make("Gather", [name, position], axis=axis))


def _parted(c: Expansion, names: Sequence[str], scanned: int) -> tuple[list[str], list[str]]:
    """Return the names of a scan's states, and of the tensors that it scans."""
    if not 1 <= scanned <= len(names):
        raise InvalidNode(f"its attribute num_scan_inputs is {scanned}, of {len(names)} inputs")
    return list(names[:-scanned]), list(names[-scanned:])


def _listed(c: Expansion, attribute: str, length: int) -> list[int]:
    """Return an attribute with a number for each tensor, all 0 by default."""
    numbers = list(c.attributes.get(attribute, [0] * length))
    if len(numbers) != length:
        raise InvalidNode(f"its attribute {attribute} has {len(numbers)} numbers, not {length}")
    return numbers
