"""Names of nodes: each has its own, whatever the model says."""

from __future__ import annotations

import pytest
from onnx import helper
from operators import build, random

import tvmflow
from tvmflow.frontend import load_model
from tvmflow.graph.rewriter import identifier


def names_of(nodes, outputs=("y",)):
    """Names of the nodes' bindings, by the tensors that they compute."""
    return load_model(build(nodes, {"x": (1, 4, 5, 5)}, list(outputs), {})).bindings


def test_a_node_without_a_name_does_not_take_anothers():
    nodes = [
        helper.make_node("Relu", ["x"], ["Sigmoid_1"]),
        helper.make_node("Sigmoid", ["Sigmoid_1"], ["y"], "Sigmoid_1"),
    ]
    assert names_of(nodes) == {"Sigmoid_1": "Sigmoid_1_1", "y": "Sigmoid_1"}


def test_equal_names_get_numbers():
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], "node"),
        helper.make_node("Sigmoid", ["a"], ["b"], "node"),
        helper.make_node("Tanh", ["b"], ["y"], "node_1"),
    ]
    assert sorted(names_of(nodes).values()) == ["node", "node_1", "node_1_1"]
    assert names_of(nodes)["a"] == "node"


@pytest.mark.parametrize("first", ["/a/Conv", "/a/Conv_1"])
def test_a_tensor_in_between_is_not_taken_for_another_node(first):
    """A convolution's product is ``NODE#1``, as an identifier what the second one is called."""
    second = {"/a/Conv": "/a/Conv_1", "/a/Conv_1": "/a/Conv"}[first]
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], first),
        helper.make_node("Conv", ["c", "w", "b"], ["y"], second),
    ]
    weights = {"w": random((4, 4, 1, 1)), "b": random((4,))}
    model = build(nodes, {"x": (1, 4, 5, 5)}, ["y"], weights)
    main = load_model(model).mod["main"]
    names = [identifier(binding.var.name) for binding in main.body.blocks[0].bindings]
    assert len(names) > len(nodes)
    assert len(set(names)) == len(names)
    with tvmflow.compile(model, target="llvm") as module:
        nodes_of_calls = [nodes for nodes in module.metadata["nodes"].values() if nodes]
    assert nodes_of_calls == [[first], [second]]
