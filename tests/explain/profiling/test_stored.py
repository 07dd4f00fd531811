"""Modules carry their scheduled functions, and the names of the nodes that these compute."""

from __future__ import annotations

import json

import numpy as np
import pytest
from onnx import helper
from support.counted_network import CHANNELS, CONVOLUTIONS, small_network
from support.operators import build, random

import tvmflow
from tvmflow.errors import ArtifactError
from tvmflow.explain.analysis import Fusion
from tvmflow.explain.profiling.counting import count_kernels
from tvmflow.explain.profiling.measure import launch_origins
from tvmflow.ir.names import nodes_of
from tvmflow.module.artifact import read_artifact
from tvmflow.module.functions import tir_text, unpack_functions


@pytest.fixture(scope="module", params=["llvm", "opencl", "adreno"])
def artifact(request, tmp_path_factory):
    where = {"target": "opencl", "device": "adreno"}
    where = where if request.param == "adreno" else {"target": request.param, "device": "cpu"}
    path = tmp_path_factory.mktemp("stored") / "net.so"
    with tvmflow.compile(
        small_network(), algorithms={"second/Conv": "direct"}, storage="buffer", **where
    ) as module:
        module.save(path)
    return read_artifact(path)


def functions_of(artifact):
    return unpack_functions(artifact.read_functions())


def test_functions_are_those_that_are_called(artifact):
    functions = functions_of(artifact)
    assert set(artifact.metadata["memory"]["steps"]) <= set(functions)
    assert set(artifact.metadata["schedules"]) == set(functions)
    for name, function in functions.items():
        assert f"def {name}(" in tir_text(function)


def test_convolutions_have_the_products_of_their_shapes(artifact):
    on_gpu = artifact.metadata["target"] != "llvm"
    found = {}
    for name, function in functions_of(artifact).items():
        kernels = count_kernels(function, on_gpu=on_gpu)
        found[name] = sum(sum(kernel.flops.values()) for kernel in kernels)
    convolutions = [flops for name, flops in found.items() if "conv2d" in name]
    # Behind each product comes an activation: one or two operations an element.
    elements = 2 * CHANNELS * 49
    for flops, products in zip(sorted(convolutions), sorted(CONVOLUTIONS), strict=True):
        assert products < flops <= products + 4 * elements


def test_calls_know_their_nodes(artifact):
    nodes = list(artifact.metadata["nodes"].values())
    assert ["first/Conv", "first/Relu"] in nodes
    assert ["second/Conv", "second/Sigmoid"] in nodes
    named = {node for group in nodes for node in group}
    assert named == {
        *("first/Conv", "first/Relu", "second/Conv", "second/Sigmoid", "mean", "probabilities")
    }
    tensors = {tensor["name"] for tensor in artifact.metadata["memory"]["tensors"]}
    assert tensors <= set(artifact.metadata["nodes"])


def test_results_of_one_call_know_their_node():
    nodes = [
        helper.make_node("TopK", ["x", "k"], ["values", "places"], "best"),
        helper.make_node("Relu", ["values"], ["v"], "relu"),
        helper.make_node("Cast", ["places"], ["p"], "cast", to=1),
        helper.make_node("Add", ["v", "p"], ["y"], "sum"),
    ]
    model = build(nodes, {"x": (3, 50)}, ["y"], {"k": np.array([7])})
    with tvmflow.compile(model, target="llvm") as module:
        found = launch_origins(module.metadata["memory"]["steps"], module.metadata)
    assert ("topk", ("best",)) in [(place.function, place.nodes) for place in found]


def test_fusion_that_is_left_is_kept():
    """The last step of a Winograd convolution has no long sums: its reader could compute it."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], "conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"], "relu"),
        helper.make_node("Concat", ["b", "x"], ["y"], "both", axis=1),
    ]
    model = build(nodes, {"x": (1, 32, 14, 14)}, ["y"], {"w": random((32, 32, 3, 3))})
    with tvmflow.compile(
        model, target="opencl", device="adreno", algorithms={"conv": "winograd4"}
    ) as module:
        left = module.metadata["fusion_left"]
        found = [Fusion(**pair) for pair in left]
        steps = module.metadata["memory"]["steps"]
    assert [pair.saved_bytes for pair in found] == [2 * 4 * 32 * 14 * 14]
    assert {found[0].producer, found[0].consumer} <= set(steps)
    assert all(not pair.prevented_by for pair in found)


def test_damaged_functions_are_refused(artifact, tmp_path):
    content = artifact.read_functions()
    whole = artifact.path.read_bytes()
    place = whole.index(content) + len(content) // 2
    path = tmp_path / "damaged.so"
    path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
    damaged = read_artifact(path)
    with pytest.raises(ArtifactError, match="primary functions are not what was written"):
        damaged.read_functions()
    with pytest.raises(ArtifactError, match="primary functions are not what was written"):
        damaged.check()


def test_names_of_tensors_in_between_belong_to_their_nodes():
    bindings = ["/a/Conv", "Split", "Split:1", "Add_1", "7"]
    members = {
        "first": ["_a_Conv_1", "_a_Conv", "Add_1"],
        "second": ["Split_1", "Split_12"],
        "third": ["_7_3", "unknown"],
        "tiles": ["_a_Conv_1_tiles"],
    }
    assert nodes_of(members, bindings) == {
        "first": ["/a/Conv", "Add_1"],
        "second": ["Split"],
        "third": ["7"],
        "tiles": ["/a/Conv"],
    }
    json.dumps(nodes_of(members, bindings))
