"""Sliding windows whose tiles share the rows of the input: results, reads, no access outside."""

from __future__ import annotations

import re

import numpy as np
import pytest
from onnx import helper
from support.checks import check_outputs, dumped_source
from support.first_stages import chosen_schedules
from support.operators import build, feeds_for, random

import tvmflow

pytestmark = pytest.mark.opencl

#: Window, stride and dilation of windows over a map of 13 x 11.
WINDOWS = {"3x3": (3, 1, 1), "5x5": (5, 1, 1), "strided": (3, 2, 1), "dilated": (3, 1, 2)}


def network(window, stride, dilation, channels=10):
    """Build a window over blocked channels, by weights and by a maximum."""
    pads = [dilation * (window // 2)] * 4
    steps = {"strides": [stride] * 2, "pads": pads, "dilations": [dilation] * 2}
    nodes = [
        helper.make_node("Conv", ["x", "a"], ["t"]),
        helper.make_node("Conv", ["t", "w"], ["u"], group=channels, **steps),
        helper.make_node("MaxPool", ["t"], ["v"], kernel_shape=[window] * 2, **steps),
        helper.make_node("Sub", ["u", "v"], ["s"]),
        helper.make_node("Conv", ["s", "b"], ["y"]),
    ]
    weights = {
        "a": random((channels, 3, 1, 1)),
        "w": random((channels, 1, window, window), seed=2),
        "b": random((5, channels, 1, 1), 0.3),
    }
    return build(nodes, {"x": (2, 3, 13, 11)}, ["y"], weights)


def knobs_for(schedules, **changes):
    """Return the heuristic's knobs with changes, for all sliding windows."""
    windows = {n: c for n, c in schedules.items() if c["family"] in ("depthwise", "pooling")}
    assert len(windows) == 2
    return {name: {**choice["knobs"], **changes} for name, choice in windows.items()}


def run(model, mode, changes, folder=None, run_module=None):
    """Compile with changed knobs and compare with ONNX Runtime; the source is in the folder."""
    device, storage, dtype = mode
    options = {"target": "opencl", "device": device, "storage": storage, "dtype": dtype}
    # PoCL has no arithmetic of halves.
    options["accumulate"] = "fp32"
    knobs = knobs_for(chosen_schedules(model, **options), **changes)
    with tvmflow.compile(model, **options, knobs=knobs, dump_ir=folder) as module:
        taken = module.metadata["schedules"]
        assert all(taken[name]["source"] == "given" for name in knobs)
        check_outputs(model, module, feeds_for(model), dtype, run=run_module)


MODES = [
    pytest.param(("adreno", "texture", "fp32"), id="texture"),
    pytest.param(("adreno", "buffer", "fp32"), id="buffer"),
    pytest.param(("nvidia", "buffer", "fp16"), id="half", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", WINDOWS)
def test_shared_rows_are_right(case, mode):
    """The tile divides neither height nor width."""
    tile = (3, 3) if case == "3x3" else (2, 2)
    changes = {"tile_h": tile[0], "tile_w": tile[1], "reuse_rows": True, "split_borders": False}
    run(network(*WINDOWS[case]), mode, changes)


@pytest.mark.parametrize("storage", ["texture", "buffer"])
def test_every_input_of_a_tile_is_read_once(storage, tmp_path):
    """A tile of 3 x 4 windows of 3 x 3 has 5 x 6 inputs; without reuse it reads 3 x 3 x 6."""
    reads = {}
    for reuse in (True, False):
        changes = {"tile_h": 3, "tile_w": 4, "reuse_rows": reuse, "split_borders": False}
        folder = tmp_path / str(reuse)
        run(network(3, 1, 1), ("adreno", storage, "fp32"), changes, folder)
        text = dumped_source(folder, r"\w*pool\w*")
        read = "read_imagef" if storage == "texture" else r"at_float4\(t_ptr"
        reads[reuse] = len(re.findall(read, text, re.IGNORECASE))
        # A loop over rows would index registers.
        assert ("for (int" in text) != reuse
    # Without reuse, a loop over the rows of a tile contains the reads of one.
    assert reads == {True: 5 * 6, False: 3 * 6}


@pytest.mark.parametrize(("size", "loops"), [(3, 0), (5, 1), (7, 1)])
def test_windows_of_many_texels_are_read_row_by_row(size, loops, tmp_path):
    """Two columns of a window of 5 take 11 texels a row, with weights, and 55 at once."""
    changes = {"tile_h": 1, "tile_w": 2, "reuse_rows": False, "split_borders": False}
    run(network(size, 1, 1), ("adreno", "texture", "fp32"), changes, tmp_path)
    text = dumped_source(tmp_path, r"\w*depthwise\w*")
    assert text.count("for (int") == loops
    row = (2 + size - 1) + size
    # The epilogue subtracts a texel for each column.
    reads = 2 + row * (1 if loops else size)
    assert len(re.findall("read_imagef", text, re.IGNORECASE)) == reads


def test_heuristics_share_the_rows_of_a_tile():
    options = {"target": "opencl", "device": "adreno"}
    # Two columns read fewer texels than two rows, if the map has two columns.
    for width, form in ((16, (1, 4)), (1, (4, 1))):
        node = helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[3, 3], pads=[1] * 4)
        model = build([node], {"x": (1, 32, 16, width)}, ["y"])
        chosen = chosen_schedules(model, **options)
        (pool,) = (s for s in chosen.values() if s["family"] == "pooling")
        knobs = pool["knobs"]
        assert (knobs["tile_h"], knobs["tile_w"], knobs["reuse_rows"]) == (*form, form[0] > 1)


@pytest.mark.oclgrind
@pytest.mark.parametrize("storage", ["texture", pytest.param("buffer", marks=pytest.mark.slow)])
def test_shared_rows_under_oclgrind(storage, under_oclgrind):
    changes = {"tile_h": 3, "tile_w": 4, "reuse_rows": True, "split_borders": True}
    mode = ("adreno", storage, "fp32")
    run(network(3, 1, 1, channels=6), mode, changes, run_module=under_oclgrind())


def test_rows_are_not_shared_on_a_cpu():
    from tvmflow.devices.target import PRESETS
    from tvmflow.schedules import depthwise
    from tvmflow.schedules.family import refusal

    extents = (1, 2, 14, 14, 4, 3, 3)
    shape = depthwise.Shape(
        *extents, stride_h=1, stride_w=1, span_h=3, span_w=3, padded=False, texture=False
    )
    knobs = depthwise.Knobs(1, 1, 1, 1, 2, 4, True, False, False)
    assert "reuse_rows is for GPUs" in str(refusal(depthwise, knobs, shape, PRESETS["cpu"]))
    assert refusal(depthwise, knobs, shape, PRESETS["adreno"]) is None
    assert np.prod((4, 6)) == shape.inputs(2, 4)
