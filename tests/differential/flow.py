"""Control flow around a network's nodes: some move into a branch or the body of a loop.

The result stays the same, so the reference is that of the original network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx
from contexts import Network
from onnx import TensorProto, helper, shape_inference

from tvmflow.frontend.nested import renamed

#: Control flow around the nodes: the first or the second branch of an If; a loop whose condition,
#: known at run time, stops it after one of two iterations; a loop's scan output.  The last two run
#: in the virtual machine: a loop with a trip count known at run time, and one whose condition
#: decides how many rows it collects.
FLOWS = ("then", "else", "while", "scan", "counted", "rows")


def in_flow(network: Network, flow: str) -> Network:
    """Move some nodes of the network, chosen by its digest, into a nested graph."""
    if network.opset < 11:  # loops must have a state
        flow = {"scan": "counted", "rows": "while"}.get(flow, flow)
    nodes, choice = list(network.nodes), int(network.digest[:8], 16)
    first = choice % len(nodes)
    last = first + 1 + choice // len(nodes) % (len(nodes) - first)
    inner, others = nodes[first:last], [*nodes[:first], *nodes[last:]]
    made = [name for node in inner for name in node.output if name]
    read = {name for node in others for name in node.input} | {t.name for t in network.outputs}
    results = [name for name in made if name in read]
    types = _types(network)
    if not results or not all(name in types for name in results) or not network.feeds:
        return network
    stem = f"{results[0]}_flow"
    constants = {
        **network.constants,
        f"{stem}_all": np.array([-1], np.int64), f"{stem}_first": np.array(0, np.int64),
        f"{stem}_two": np.array(2, np.int64), f"{stem}_one": np.array(1, np.int64),
        f"{stem}_zero": np.array(0, np.float32), f"{stem}_yes": np.array(True),
        **{f"{stem}_{name}": np.zeros(types[name][1], _dtype(types[name][0])) for name in results},
    }  # fmt: skip
    names = {name: f"{stem}_in_{name}" for name in made}
    body = [renamed(node, names) for node in inner]
    outputs = [helper.make_tensor_value_info(names[name], *types[name]) for name in results]
    before = _conditions(stem, next(iter(network.feeds)))
    flow_nodes = _branch if flow in ("then", "else") else _loop
    more = flow_nodes(flow, stem, body, outputs, results)
    changed = (*nodes[:first], *before, *more, *nodes[last:])
    return replace(network, nodes=changed, constants=constants)


def _types(network: Network) -> dict[str, tuple[int, tuple[int, ...]]]:
    """Return element types and shapes of the network's values, as far as they are known."""
    graph = shape_inference.infer_shapes(network.model, data_prop=True).graph
    found = {}
    for value in (*graph.value_info, *graph.output):
        tensor = value.type.tensor_type
        if tensor.HasField("shape") and all(d.HasField("dim_value") for d in tensor.shape.dim):
            shape = tuple(d.dim_value for d in tensor.shape.dim)
            found[value.name] = tensor.elem_type, shape
    return found


def _dtype(elem_type: int) -> np.dtype:
    return helper.tensor_dtype_to_np_dtype(elem_type)


def _conditions(stem: str, feed: str) -> list[onnx.NodeProto]:
    """Return conditions that are true and false for any input; a compiler cannot know."""
    node = helper.make_node
    return [
        node("Reshape", [feed, f"{stem}_all"], [f"{stem}_flat"]),
        node("Gather", [f"{stem}_flat", f"{stem}_first"], [f"{stem}_element"]),
        node("Cast", [f"{stem}_element"], [f"{stem}_number"], to=TensorProto.FLOAT),
        node("Less", [f"{stem}_number", f"{stem}_zero"], [f"{stem}_less"]),
        node("Not", [f"{stem}_less"], [f"{stem}_not"]),
        node("Or", [f"{stem}_less", f"{stem}_not"], [f"{stem}_true"]),
        node("And", [f"{stem}_less", f"{stem}_not"], [f"{stem}_false"]),
        node("Cast", [f"{stem}_true"], [f"{stem}_once"], to=TensorProto.INT64),
    ]


def _branch(
    flow: str,
    stem: str,
    body: Sequence[onnx.NodeProto],
    outputs: Sequence[onnx.ValueInfoProto],
    results: Sequence[str],
) -> list[onnx.NodeProto]:
    """Return an If with the nodes in one branch, and zeros in the other."""
    run = helper.make_graph(body, "run", [], outputs)
    zeros, infos = [], []
    for name, value in zip(results, outputs, strict=True):
        zeros.append(helper.make_node("Identity", [f"{stem}_{name}"], [f"{stem}_not_{name}"]))
        infos.append(onnx.ValueInfoProto(name=f"{stem}_not_{name}", type=value.type))
    other = helper.make_graph(zeros, "not_run", [], infos)
    is_then = flow == "then"
    return [
        helper.make_node(
            "If", [f"{stem}_true" if is_then else f"{stem}_false"], results, name=stem,
            then_branch=run if is_then else other, else_branch=other if is_then else run,
        )
    ]  # fmt: skip


def _loop(
    flow: str,
    stem: str,
    body: Sequence[onnx.NodeProto],
    outputs: Sequence[onnx.ValueInfoProto],
    results: Sequence[str],
) -> list[onnx.NodeProto]:
    """Return a Loop whose state, or scan outputs, are the results of the nodes."""
    going = onnx.ValueInfoProto(name=f"{stem}_going")
    going.type.tensor_type.elem_type = TensorProto.BOOL
    inputs = [
        helper.make_tensor_value_info(f"{stem}_i", TensorProto.INT64, []),
        helper.make_tensor_value_info(f"{stem}_c", TensorProto.BOOL, []),
    ]
    has_state, is_ended = flow in ("while", "counted"), flow in ("while", "rows")
    if has_state:
        inputs += [
            onnx.ValueInfoProto(name=f"{stem}_before_{name}", type=value.type)
            for name, value in zip(results, outputs, strict=True)
        ]
    last = [f"{stem}_false" if is_ended else f"{stem}_c"]
    nodes = [*body, helper.make_node("Identity", last, [going.name])]
    graph = helper.make_graph(nodes, "body", inputs, [going, *outputs])
    trips = {"counted": "once", "scan": "one"}.get(flow, "two")
    given = [f"{stem}_{trips}", f"{stem}_{'true' if is_ended else 'yes'}"]
    if has_state:
        given += [f"{stem}_{name}" for name in results]
        return [helper.make_node("Loop", given, results, name=stem, body=graph)]
    stacked = [f"{stem}_stacked_{name}" for name in results]
    return [
        helper.make_node("Loop", given, stacked, name=stem, body=graph),
        *(
            helper.make_node("Gather", [rows, f"{stem}_first"], [name])
            for rows, name in zip(stacked, results, strict=True)
        ),
    ]
