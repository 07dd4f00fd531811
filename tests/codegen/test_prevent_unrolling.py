"""Loops that read many texels have extents that no compiler knows; others are as they were."""

from __future__ import annotations

import re

import onnxruntime
import pytest
from onnx import helper
from support.operators import build, random

import tvmflow
from tvmflow.verify.tolerance import NETWORK, assert_close

KEPT = re.compile(r"for \(int \w+ = 0; \w+ < tvmflow_times\(\d+\)")


def source_of(node, shape, constants, folder, **options):
    """OpenCL C of a model of one node, of which a run gives ONNX Runtime's numbers."""
    model = build([node], {"x": shape}, ["y"], constants)
    x = random(shape)
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})[0]
    options = {"target": "opencl", "device": "adreno", "storage": "texture"} | options
    with tvmflow.compile(model, dump_ir=folder, **options) as module:
        assert_close(module(x=x)["y"], expected, NETWORK)
    (source,) = folder.glob("*export.0.opencl")
    return source.read_text()


@pytest.mark.opencl
@pytest.mark.parametrize(
    ("inputs", "window", "kept"),
    # An iteration is four channels, some 10 texels, or a row of a window; of 4 there is no loop.
    [(64, 1, True), (61, 1, True), (4, 1, False), (12, 3, True)],
)
def test_loops_of_many_texels_are_kept(inputs, window, kept, tmp_path):
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[window // 2] * 4)
    weight = {"w": random((18, inputs, window, window))}
    source = source_of(node, (1, inputs, 33, 47), weight, tmp_path)
    assert bool(KEPT.search(source)) == kept


@pytest.mark.opencl
def test_loops_of_few_texels_are_not_kept(tmp_path):
    node = helper.make_node("GlobalAveragePool", ["x"], ["y"])
    assert not KEPT.search(source_of(node, (1, 6, 7, 9), {}, tmp_path))


@pytest.mark.opencl
def test_loops_of_single_items_are_not_kept(tmp_path):
    node = helper.make_node("Conv", ["x", "w"], ["y"])
    weight = {"w": random((18, 64, 1, 1))}
    assert not KEPT.search(source_of(node, (1, 64, 9, 7), weight, tmp_path, device="cpu"))


@pytest.mark.opencl
def test_channels_of_texels_are_chosen(tmp_path):
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["map"]),
        helper.make_node("GlobalAveragePool", ["map"], ["means"]),
        helper.make_node("Flatten", ["means"], ["y"]),
    ]
    model = build(nodes, {"x": (1, 8, 5, 3)}, ["y"], {"w": random((90, 8, 1, 1))})
    x = random((1, 8, 5, 3))
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})[0]
    options = {"target": "opencl", "device": "adreno", "storage": "texture"}
    with tvmflow.compile(model, dump_ir=tmp_path, **options) as module:
        assert_close(module(x=x)["y"], expected, NETWORK)
    (source,) = tmp_path.glob("*export.0.opencl")
    assert "tvmflow_channel(" in source.read_text()
    assert "*)&" not in source.read_text()
