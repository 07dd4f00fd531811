"""Every node has a unique name, whatever names the model has."""

from __future__ import annotations

import pytest
from onnx import helper
from support.operators import build, random

import tvmflow
from tvmflow.frontend.load import load_model
from tvmflow.ir.names import nodes_of
from tvmflow.ir.rewriter import identifier


def names_of(nodes, outputs=("y",)):
    """Return the names of the nodes' bindings, by the tensors that they compute."""
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


def calls_of(model):
    """Return the nodes of the module's calls, without calls that have none."""
    with tvmflow.compile(model, target="llvm") as module:
        return [nodes for nodes in module.metadata["nodes"].values() if nodes]


def convolutions(*names):
    """Build a chain of convolutions with these names."""
    tensors = ["x", *(f"t{number}" for number in range(1, len(names))), "y"]
    nodes = [
        helper.make_node("Conv", [x, "w"], [y], name)
        for name, x, y in zip(names, tensors, tensors[1:], strict=False)
    ]
    return build(nodes, {"x": (1, 4, 5, 5)}, ["y"], {"w": random((4, 4, 1, 1))})


def test_names_that_are_one_identifier_are_told_apart():
    assert calls_of(convolutions("a/b", "a.b", "a_b")) == [["a/b"], ["a.b_1"], ["a_b_2"]]


def test_further_results_are_not_taken_for_another_node():
    """Split's second result is ``NODE:1``, which as an identifier equals the next node's name."""
    nodes = [
        helper.make_node("Split", ["x"], ["a", "b"], "/Split", axis=1),
        helper.make_node("Conv", ["b", "w"], ["c"], "/Split_1"),
        helper.make_node("Split", ["c"], ["d", "e"], "/Split_2", axis=2),
        helper.make_node("Tanh", ["e"], ["f"], "/Tanh"),
    ]
    model = build(nodes, {"x": (1, 8, 6, 5)}, ["a", "f"], {"w": random((4, 4, 1, 1))})
    assert load_model(model).bindings["b"] == "/Split:3"
    assert {name for nodes in calls_of(model) for name in nodes} == {node.name for node in nodes}
    assert ["/Split_1"] in calls_of(model)


def test_a_node_that_is_called_like_a_step_of_another():
    """A convolution of several steps has functions such as ``NODE_tiles``."""
    members = {"a": ["conv_tiles"], "b": ["conv_products"], "c": ["conv_products1"]}
    nodes = nodes_of(members, ["conv", "conv_tiles"])
    assert nodes == {"a": ["conv_tiles"], "b": ["conv"], "c": ["conv"]}


@pytest.mark.parametrize("first", ["/a/Conv", "/a/Conv_1"])
def test_a_tensor_in_between_is_not_taken_for_another_node(first):
    """A convolution's product is ``NODE#1``, which as an identifier is the second node's name."""
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
    assert calls_of(model) == [[first], [second]]
