"""Convolutions whose weights or sums go through memory that a work-group shares."""

from __future__ import annotations

import re

import numpy as np
import pytest
from support.checks import check_outputs, dumped_source
from support.first_stages import chosen_schedules
from support.onnx_models import model_of
from support.operators import feeds_for

import tvmflow
from tvmflow.ir.annotations import CONSTANT_SUFFIX
from tvmflow.schedules.common import local_bytes
from tvmflow.schedules.sizes import LOCAL_BYTES

#: Input channels, output channels, window, stride, size.
LAYERS = {
    "3x3": (6, 10, 3, 1, 9),
    "strided": (30, 18, 3, 2, 13),
    "pointwise": (64, 24, 1, 1, 7),
    "first": (3, 8, 3, 1, 12),
}
#: Layers whose maps are divided by tiles of many forms.
EVEN = {"even": (64, 24, 1, 1, 8), "window": (64, 18, 3, 1, 8)}

#: A tile of a row of the map, two of which make a group.
ROWS = {"tile_h": 1, "tile_w": 7, "group_o": 2, "group_h": 1, "group_w": 1}


def layer(inputs, outputs, kernel, stride, size):
    rng = np.random.default_rng(inputs)
    weight = (rng.standard_normal((outputs, inputs, kernel, kernel)) / inputs).astype(np.float32)
    bias = rng.standard_normal(outputs).astype(np.float32)
    nodes = f"c = Conv<pads = {[kernel // 2] * 4}, strides = {[stride] * 2}>(x, w, b) y = Relu(c)"
    constants = {"w": weight, "b": bias}
    return model_of(nodes, {"x": (1, inputs, size, size)}, "y", constants, opset=18)


def run(name, storage, change, folder, run_module=None):
    """Compile a layer with changed knobs, compare it, and return the source of its kernels."""
    model = layer(*{**LAYERS, **EVEN}[name])
    options = {"target": "opencl", "device": "adreno", "storage": storage}
    chosen = chosen_schedules(model, **options)
    function = next(n for n, c in chosen.items() if c["family"].startswith("conv2d"))
    knobs = chosen[function]["knobs"]
    if "split_i" in knobs:
        knobs = {**knobs, "split_i": 1}
    knobs = {function: {**knobs, **change}}
    with tvmflow.compile(model, **options, knobs=knobs, dump_ir=folder) as module:
        taken = module.metadata["schedules"][function]
        check_outputs(model, module, feeds_for(model), run=run_module)
    return taken, dumped_source(folder)


@pytest.mark.opencl
@pytest.mark.parametrize("storage", ["texture", "buffer"])
@pytest.mark.parametrize("name", LAYERS)
def test_weights_in_local_memory(name, storage, tmp_path):
    taken, source = run(name, storage, {"weights": "local"}, tmp_path)
    assert taken["source"] == "given"
    assert "__local float" in source
    assert "barrier(CLK_LOCAL_MEM_FENCE)" in source


@pytest.mark.opencl
@pytest.mark.parametrize("name", LAYERS)
def test_weights_in_constant_memory(name, tmp_path):
    taken, source = run(name, "buffer", {"weights": "constant"}, tmp_path)
    assert taken["source"] == "given"
    assert f"__constant float* restrict param_0{CONSTANT_SUFFIX}" in source


@pytest.mark.opencl
def test_textures_are_not_read_from_constant_memory(tmp_path, caplog):
    taken, source = run("3x3", "texture", {"weights": "constant"}, tmp_path)
    assert taken["source"] == "heuristic"
    assert "__constant" not in source
    assert "Constant memory holds plain fp32 buffers" in caplog.text


@pytest.mark.opencl
@pytest.mark.parametrize("storage", ["texture", "buffer"])
@pytest.mark.parametrize("split", [2, 4, 8])
def test_split_sums(split, storage, tmp_path):
    taken, source = run("pointwise", storage, {**ROWS, "split_i": split}, tmp_path)
    assert (taken["family"], taken["source"]) == ("conv2d_1x1", "given")
    assert "barrier(CLK_LOCAL_MEM_FENCE)" in source


@pytest.mark.opencl
@pytest.mark.parametrize("storage", ["texture", "buffer"])
@pytest.mark.parametrize(("rows", "columns", "split"), [(2, 2, 4), (4, 1, 2), (4, 4, 8)])
@pytest.mark.parametrize("name", EVEN)
def test_split_sums_of_tiles(name, rows, columns, split, storage, tmp_path):
    """Items of a group that share a tile add up its sums, and no others."""
    group = dict.fromkeys(("group_o", "group_h", "group_w"), 1)
    change = {"tile_h": rows, "tile_w": columns, "split_i": split, **group}
    taken, source = run(name, storage, change, tmp_path)
    assert taken["source"] == "given"
    sums = re.search(r"float4 \w+_rf_shared_local_ptr\[(\d+)\];", source)
    assert int(sums[1]) == rows * columns


def test_small_maps_split_their_sums_on_gpus_only():
    model = layer(256, 64, 1, 1, 7)
    for device, split in (("adreno", True), ("cpu", False)):
        with tvmflow.compile(model, target="opencl", device=device) as module:
            (knobs,) = (
                c["knobs"]
                for c in module.metadata["schedules"].values()
                if c["family"] == "conv2d_1x1"
            )
        assert (knobs["split_i"] > 1) == split


@pytest.mark.oclgrind
@pytest.mark.opencl
@pytest.mark.parametrize("storage", ["texture", "buffer"])
def test_no_item_overtakes_another(storage, tmp_path, under_oclgrind):
    oclgrind = under_oclgrind()
    taken, _ = run("pointwise", storage, {**ROWS, "split_i": 4}, tmp_path, oclgrind)
    assert taken["source"] == "given"
    run("3x3", storage, {"weights": "local"}, tmp_path, oclgrind)


def test_local_memory_is_counted():
    from tvm import s_tir
    from tvm.script import tirx as T

    @T.prim_func(s_tir=True)
    def copies(x: T.Buffer((64, 32), "float32"), y: T.Buffer((64, 32), "float32")):
        for i in T.thread_binding(64, thread="blockIdx.x"):
            for j in T.thread_binding(32, thread="threadIdx.x"):
                with T.sblock("y"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    y[vi, vj] = x[vi, vj]

    sch = s_tir.Schedule(copies)
    assert local_bytes(sch) == 0
    block = sch.get_sblock("y")
    sch.compute_at(sch.cache_read(block, 0, "shared"), sch.get_loops(block)[0])
    assert local_bytes(sch) == 32 * 4 <= LOCAL_BYTES
