"""Loops that read many texels have extents that no compiler knows; others are as they were."""

from __future__ import annotations

import re

import pytest
from support.onnx_models import expected, model_of
from support.operators import random

import tvmflow
from tvmflow.verify.tolerance import NETWORK, assert_close

KEPT = re.compile(r"for \(int \w+ = 0; \w+ < tvmflow_times\(\d+\)")


def source_of(nodes, shape, constants, folder, **options):
    """OpenCL C of a model, of which a run gives ONNX Runtime's numbers."""
    model = model_of(nodes, {"x": shape}, "y", constants)
    x = random(shape)
    options = {"target": "opencl", "device": "adreno", "storage": "texture"} | options
    with tvmflow.compile(model, dump_ir=folder, **options) as module:
        assert_close(module(x=x)["y"], expected(model, {"x": x})[0], NETWORK)
    (source,) = folder.glob("*export.0.opencl")
    return source.read_text()


@pytest.mark.opencl
@pytest.mark.parametrize(
    ("inputs", "window", "kept"),
    # An iteration is four channels, some 10 texels, or a row of a window; of 4 there is no loop.
    [(64, 1, True), (61, 1, True), (4, 1, False), (12, 3, True)],
)
def test_loops_of_many_texels_are_kept(inputs, window, kept, tmp_path):
    pads = [window // 2] * 4
    weight = {"w": random((18, inputs, window, window))}
    source = source_of(f"y = Conv<pads = {pads}>(x, w)", (1, inputs, 33, 47), weight, tmp_path)
    assert bool(KEPT.search(source)) == kept


@pytest.mark.opencl
def test_loops_of_few_texels_are_not_kept(tmp_path):
    assert not KEPT.search(source_of("y = GlobalAveragePool(x)", (1, 6, 7, 9), {}, tmp_path))


@pytest.mark.opencl
def test_loops_of_single_items_are_not_kept(tmp_path):
    weight = {"w": random((18, 64, 1, 1))}
    source = source_of("y = Conv(x, w)", (1, 64, 9, 7), weight, tmp_path, device="cpu")
    assert not KEPT.search(source)


@pytest.mark.opencl
def test_channels_of_texels_are_chosen(tmp_path):
    nodes = "map = Conv(x, w) means = GlobalAveragePool(map) y = Flatten(means)"
    source = source_of(nodes, (1, 8, 5, 3), {"w": random((90, 8, 1, 1))}, tmp_path)
    assert "tvmflow_channel(" in source
    assert "*)&" not in source
