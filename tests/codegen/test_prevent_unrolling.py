"""Loops that read many texels have extents that no compiler knows; others are as they were."""

from __future__ import annotations

import re

import pytest
from support.onnx_models import expected, model_of
from support.operators import random
from tvm import IRModule, tirx
from tvm.ir import Call
from tvm.ir.transform import Sequential
from tvm.script import tirx as T
from tvm.target import Target

import tvmflow
from tvmflow.codegen.prevent_unrolling import NAME, PreventLoopUnrolling
from tvmflow.codegen.textures import TextureFlatten
from tvmflow.ir.expressions import nodes_in
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


# -- loops with computed extents, and nests ------------------------------------------------------


IMAGE = (1, 1, 64, 64, 4)


def kept_extents(function) -> list[str]:
    """Return the extents that are hidden in a kernel, the outer loops first."""
    mod = IRModule({"main": function.with_attr("target", Target("opencl"))})
    passes = TextureFlatten, tirx.transform.UnrollLoop(), PreventLoopUnrolling
    body = Sequential(passes)(mod)["main"].body
    extents = [loop.extent for loop in nodes_in(body, tirx.For) if isinstance(loop.extent, Call)]
    return [str(e.args[1]) for e in extents if e.args[0] == NAME]


def test_extents_that_have_a_bound_are_hidden():
    """The last chunk of a sum is shorter: a compiler that unrolls the chunks knows all extents."""

    @T.prim_func(s_tir=True)
    def chunks(
        x: T.Buffer(IMAGE, "float32", scope="global.texture:p1"), y: T.Buffer((64,), "float32")
    ):
        item = T.launch_thread("threadIdx.x", 64)
        for chunk in range(2):
            for i in range(T.min(6, 11 - chunk * 6)):
                for k in T.unroll(5):
                    y[item] += x[0, 0, chunk * 6 + i, k, 0]

    assert kept_extents(chunks) == ["T.min(6, 11 - chunk * 6)"]


def test_the_texels_of_inner_loops_count():
    @T.prim_func(s_tir=True)
    def nest(
        x: T.Buffer(IMAGE, "float32", scope="global.texture:p1"), y: T.Buffer((64,), "float32")
    ):
        item = T.launch_thread("threadIdx.x", 64)
        for block in range(8):
            for row in range(3):
                for k in T.unroll(5):
                    y[item] += x[0, 0, block * 3 + row, k, 0]

    # 15 texels of a block are few enough, those of all blocks are not.
    assert kept_extents(nest) == ["8"]
