"""Utilities for nested graphs: attributes of nodes, such as branches of If and bodies of loops.

A nested graph defines its own names and can read the names of the graphs around it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import onnx


def nested_graphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs that are attributes of a node; no ONNX operator has a list of graphs."""
    for attribute in node.attribute:
        if attribute.type == attribute.GRAPH:
            yield attribute.g


def all_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Yield nodes and the nodes of graphs nested in them, at any depth."""
    for node in nodes:
        yield node
        for graph in nested_graphs(node):
            yield from all_nodes(graph.node)


def all_graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield a graph and the graphs nested in it, at any depth."""
    yield graph
    for node in all_nodes(graph.node):
        yield from nested_graphs(node)


def reads(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the names that a node depends on: its inputs, and captures of its nested graphs."""
    yield from node.input
    for graph in nested_graphs(node):
        own = own_names(graph)
        inner = (name for each in graph.node for name in reads(each))
        yield from (name for name in (*inner, *names_of(graph.output)) if name not in own)


def own_names(graph: onnx.GraphProto) -> set[str]:
    """Return the names that a graph defines: its inputs, weights and nodes' results."""
    results = (name for node in graph.node for name in node.output)
    return {*names_of(graph.input), *names_of(graph.initializer), *results}


def names_of(items: Iterable[onnx.ValueInfoProto | onnx.TensorProto]) -> list[str]:
    """Return the names of a graph's inputs, outputs or weights."""
    return [item.name for item in items]


def needed(nodes: Sequence[onnx.NodeProto], outputs: Iterable[str]) -> list[onnx.NodeProto]:
    """Return the nodes that these outputs depend on, in order."""
    names = set(outputs)
    kept = []
    for node in reversed(nodes):
        if names.intersection(node.output):
            names.update(reads(node))
            kept.append(node)
    return kept[::-1]


def renamed(node: onnx.NodeProto, names: Mapping[str, str]) -> onnx.NodeProto:
    """Return a copy of a node with renamed values, including captures of its nested graphs."""
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    _rename(copy, names)
    return copy


def _rename(node: onnx.NodeProto, names: Mapping[str, str]) -> None:
    node.input[:] = [names.get(name, name) for name in node.input]
    node.output[:] = [names.get(name, name) for name in node.output]
    for graph in nested_graphs(node):
        own = own_names(graph)
        outer = {old: new for old, new in names.items() if old not in own}
        for inner in graph.node:
            _rename(inner, outer)
        for value in graph.output:
            value.name = outer.get(value.name, value.name)


def rewritten(
    nodes: list[onnx.NodeProto], rewrite: Callable[[list[onnx.NodeProto]], list[onnx.NodeProto]]
) -> list[onnx.NodeProto]:
    """Rewrite a list of nodes; nested graphs are rewritten first, innermost first and in place."""
    for node in nodes:
        for graph in nested_graphs(node):
            before = list(graph.node)
            after = rewritten(before, rewrite)
            if [*map(id, after)] != [*map(id, before)]:
                new = onnx.GraphProto(node=after)
                del graph.node[:]
                graph.node.extend(new.node)
    return rewrite(nodes)
