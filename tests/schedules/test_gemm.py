"""Convolutions and products as products of padded matrices on CUDA, with tensor cores."""

from __future__ import annotations

import random
import re
import subprocess
from contextlib import closing
from dataclasses import asdict, replace

import numpy as np
import pytest
from onnx import numpy_helper
from support import operators
from support.convolutions import network
from support.cuda_host import cuda_host
from support.knob_choices import candidates
from support.onnx_models import expected, model_of
from support.operators import feeds_for, single
from tvm import relax, te

import tvmflow
from tvmflow.devices.target import resolve, with_dtype
from tvmflow.errors import CompileError
from tvmflow.graph.storage.float16 import with_types
from tvmflow.ir.scope import HALF_BUFFER
from tvmflow.ir.signatures import with_scopes
from tvmflow.module.functions import modules_in
from tvmflow.schedules import FAMILIES
from tvmflow.schedules.family import refusal
from tvmflow.schedules.gemm import Shape, groups, padded, padded_depth
from tvmflow.schedules.gemm_simt import Knobs as Simt
from tvmflow.schedules.gemm_tensor import Knobs as Tensor
from tvmflow.verify.tolerance import NETWORK, STORED_AS_HALF, assert_close

BY_NAME = {family.NAME: family for family in FAMILIES}
TOLERANCES = {"fp32": NETWORK, "fp16": STORED_AS_HALF}


def conv(
    channels, outputs, size, kernel=3, *, batch=1, stride=1, dilation=1, pad=1, residual=False
):
    """Build a convolution between two others, of two channels, so that its tensors are blocked."""
    rng = np.random.default_rng(channels * outputs + size)

    def weight(*shape):
        values = rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]) or 1)
        return values.astype(np.float32)

    weights = {
        "w0": weight(channels, 2, 1, 1), "w": weight(outputs, channels, kernel, kernel),
        "b": weight(outputs), "w2": weight(2, outputs, 1, 1),
    }  # fmt: skip
    window = f"pads = {[pad] * 4}, strides = {[stride] * 2}, dilations = {[dilation] * 2}"
    nodes = f"""
        a = Conv(x, w0) layer = Conv<{window}>(a, w, b)
        c = {"Add(layer, a)" if residual else "Relu(layer)"} y = Conv(c, w2)
    """
    return model_of(nodes, {"x": (batch, 2, size, size)}, "y", weights, opset=18)


def run(model, feeds, **options):
    """Return a model's outputs on the host, and the families of its functions."""
    with closing(tvmflow.compile(model, target="cuda", **options)) as module:
        families = [entry["family"] for entry in module.metadata["schedules"].values()]
        return cuda_host()(module, feeds), families


CONVOLUTIONS = [
    pytest.param(conv(20, 24, 7), id="channels_20_map_7"),
    pytest.param(conv(24, 40, 9, batch=3, stride=2), id="batch_3_stride_2"),
    pytest.param(conv(32, 32, 11, dilation=2, pad=2), id="dilation"),
    pytest.param(conv(40, 40, 9, 1, pad=0, residual=True), id="pointwise_residual"),
    pytest.param(conv(16, 33, 10, 5, pad=0), id="window_5", marks=pytest.mark.slow),
]
FAMILY = {"fp32": "gemm_simt", "fp16": "gemm_tensor"}


@pytest.mark.cuda_host
@pytest.mark.onnxruntime
@pytest.mark.parametrize("dtype", FAMILY)
@pytest.mark.parametrize("model", CONVOLUTIONS)
def test_convolutions_are_right(model, dtype):
    feeds = feeds_for(model)
    outputs, families = run(model, feeds, dtype=dtype, algorithms={"layer": "gemm"})
    assert families.count(FAMILY[dtype]) == 1
    assert_close(outputs["y"], expected(model, feeds)[0], TOLERANCES[dtype])


@pytest.mark.cuda_host
@pytest.mark.onnxruntime
@pytest.mark.parametrize("dtype", FAMILY)
@pytest.mark.parametrize(
    "shapes",
    [[(70, 150), (150, 100)], [(3, 60, 96), (3, 96, 101)]],
    ids=["rows_70_depth_150", "batch_3_columns_101"],
)
def test_products_of_computed_matrices_are_right(shapes, dtype):
    model = single("MatMul", shapes)
    feeds = feeds_for(model)
    outputs, families = run(model, feeds, dtype=dtype)
    assert families == [FAMILY[dtype]]
    assert_close(outputs["y"], expected(model, feeds)[0], TOLERANCES[dtype])


@pytest.mark.cuda_host
@pytest.mark.onnxruntime
@pytest.mark.parametrize("dtype", FAMILY)
def test_products_with_weights_are_right(dtype):
    weights = np.random.default_rng(5).standard_normal((96, 200)).astype(np.float32)
    model = single("MatMul", [(2, 37, 96)], {"w": weights})
    feeds = feeds_for(model)
    outputs, families = run(model, feeds, dtype=dtype)
    assert FAMILY[dtype] in families
    assert_close(outputs["y"], expected(model, feeds)[0], TOLERANCES[dtype])


@pytest.mark.cuda_host
@pytest.mark.onnxruntime
@pytest.mark.parametrize("channels", [3, pytest.param(5, marks=pytest.mark.slow)])
def test_the_first_layer_is_a_product_on_tensor_cores(channels, monkeypatch):
    """Its few channels are padded with zeros to whole vectors, which are copied at once."""
    model = first_layer(channels)
    feeds = feeds_for(model)
    outputs, families = run(model, feeds, dtype="fp16")
    assert "gemm_tensor" in families
    assert_close(outputs[model.graph.output[0].name], expected(model, feeds)[0], STORED_AS_HALF)
    body, _source = kernel(model, "gemm_tensor", monkeypatch, dtype="fp16")
    assert re.search(r"ptx_cp_async_\w*pred_cg_16\w*\(", body)


def first_layer(channels):
    """Build a convolution of the model's input, with a 7 x 7 window and a stride of 2."""
    return operators.conv((1, channels, 61, 53), 40, (7, 7), stride=2, pad=3)


# -- knobs -----------------------------------------------------------------------------------------


def gpu(dtype):
    return with_dtype(resolve("cuda"), dtype).device


def widest(rows, columns, depth, dtype):
    """Return the shape of one product that is read in the widest vectors."""
    lanes = 8 if dtype == "fp16" else 4
    return Shape(1, rows, columns, depth, lanes, lanes, half=dtype == "fp16")


def shapes(dtype):
    """Return shapes of matrices as the layout pass pads them."""
    rng, lanes = random.Random(0), (1, 2, 4, 8) if dtype == "fp16" else (1, 2, 4)
    for _ in range(100):
        rows, columns = (padded(rng.choice([10, 49, 196, 1000, 12544, 50000])) for _ in range(2))
        yield Shape(
            rng.choice([1, 12]), rows, columns, padded_depth(rng.choice([16, 147, 512, 4608])),
            rng.choice(lanes), rng.choice(lanes), half=dtype == "fp16",
        )  # fmt: skip


@pytest.mark.parametrize("dtype", FAMILY)
def test_heuristics_keep_the_constraints(dtype):
    family, device = BY_NAME[FAMILY[dtype]], gpu(dtype)
    for shape in shapes(dtype):
        knobs = family.heuristic(shape, device)
        assert refusal(family, knobs, shape, device) is None, (shape, knobs)


@pytest.mark.parametrize("dtype", FAMILY)
@pytest.mark.parametrize(
    ("rows", "columns", "depth"),
    [(49, 512, 4608), (49, 512, 2048), (196, 256, 2304), (12544, 64, 416), (3136, 256, 576)],
)
def test_no_work_group_goes_many_steps_alone(rows, columns, depth, dtype):
    """Deep products of small maps are shared; large ones need no second kernel."""
    family, device = BY_NAME[FAMILY[dtype]], gpu(dtype)
    shape = widest(padded(rows), padded(columns), depth, dtype)
    knobs = family.heuristic(shape, device)
    tile = family.tile(knobs)
    count = groups(shape, tile.rows, tile.columns) * knobs.splits
    assert count >= 0.5 * device.multiprocessors.count
    small = rows < 1000
    assert (knobs.splits > 1) == small
    assert not small or depth // tile.depth // knobs.splits <= 36


@pytest.mark.parametrize("dtype", FAMILY)
def test_a_space_has_several_candidates(dtype):
    family, device = BY_NAME[FAMILY[dtype]], gpu(dtype)
    shape = widest(3136, 256, 576, dtype)
    found = list(candidates(family, shape, device))
    assert len(found) == len(set(found)) > 50


@pytest.mark.parametrize(
    ("dtype", "change", "sentence"),
    [
        ("fp16", {"stages": 5}, "stages is at most 4"),
        ("fp16", {"tile_m": 24}, "must divide rows"),
        ("fp16", {"splits": 4}, "divides the steps"),
        ("fp32", {"splits": 18}, "splits is at most 16"),
        ("fp16", {"warps_m": 4, "warps_n": 8}, "whole fragments"),
        ("fp32", {"tile_n": 4, "group_n": 4}, "64 numbers"),
        ("fp32", {"tile_k": 6}, "tile_k is a multiple of 4"),
        ("fp32", {"group_m": 64, "tile_m": 1, "group_n": 16, "tile_k": 64}, "32 to 512"),
    ],
)
def test_knobs_that_do_not_fit_are_refused(dtype, change, sentence):
    family, device = BY_NAME[FAMILY[dtype]], gpu(dtype)
    shape = widest(3136, 256, 576, dtype)
    fitting = Tensor(64, 64, 32, 2, 2, 3, 1) if dtype == "fp16" else Simt(8, 1, 8, 8, 16, 3, 1)
    assert refusal(family, fitting, shape, device) is None
    knobs = replace(fitting, **change)
    assert sentence in refusal(family, knobs, shape, device)


@pytest.mark.cuda_host
@pytest.mark.onnxruntime
@pytest.mark.parametrize(
    ("dtype", "knobs"),
    [
        ("fp16", Tensor(32, 64, 32, 2, 2, 4, 1)),
        ("fp16", Tensor(64, 32, 32, 2, 1, 1, 1)),
        ("fp16", Tensor(32, 32, 16, 1, 2, 2, 6)),
        ("fp32", Simt(4, 2, 8, 8, 8, 2, 4)),
        ("fp32", Simt(8, 1, 4, 8, 32, 1, 1)),
        ("fp32", Simt(1, 2, 16, 8, 32, 2, 1)),
    ],
)
def test_other_knobs_are_right(dtype, knobs):
    model = conv(32, 64, 11)
    feeds = feeds_for(model)
    name = "fused_conv2d1_add_relu"
    options = {"dtype": dtype, "algorithms": {"layer": "gemm"}, "knobs": {name: asdict(knobs)}}
    with closing(tvmflow.compile(model, target="cuda", **options)) as module:
        entry = module.metadata["schedules"][name]
        assert (entry["family"], entry["source"]) == (FAMILY[dtype], "given")
        outputs = cuda_host()(module, feeds)
    assert_close(outputs["y"], expected(model, feeds)[0], TOLERANCES[dtype])


# -- what the kernels are --------------------------------------------------------------------------


def kernel(model, family, monkeypatch, **options):
    """Return the source of a family's kernel."""
    sources = []
    build = relax.build

    def keep(*arguments, **options):
        executable = build(*arguments, **options)
        sources.extend(m.inspect_source() for m in modules_in(executable.mod))
        return executable

    monkeypatch.setattr("tvm.relax.build", keep)
    with closing(tvmflow.compile(model, target="cuda", **options)) as module:
        entries = module.metadata["schedules"].items()
        (name,) = [name for name, entry in entries if entry["family"] == family]
    start = sources[0].rindex(f"{name}_kernel(")
    return sources[0][start:].partition('extern "C"')[0], sources[0]


def test_tensor_cores_are_fed_by_asynchronous_copies_of_16_bytes(monkeypatch):
    body, _source = kernel(conv(64, 64, 14), "gemm_tensor", monkeypatch, dtype="fp16")
    assert body.count("mma_sync") > 0
    # Pixels are copied under a test for the border, weights without one.
    assert re.search(r"ptx_cp_async_\w*pred_cg_16\w*\(\w+, [^;]*, x_ptr|ptx_cp_async_\w*pred", body)
    assert re.search(r"ptx_cp_async_(?!\w*pred)\w*cg_16", body)
    # Each step waits for its tiles while those of the next are in flight, and has one barrier.
    step = re.search(r"\n  for \(int k_0.*?\n  }\n", body, re.DOTALL)
    assert step[0].count("__syncthreads()") == 1
    assert re.search(r"wait_group_1\(\);\s+__syncthreads\(\);", step[0])
    # The epilogue is in the kernel, and its result is stored in whole vectors of halves.
    assert re.search(r"max\(", body)
    assert re.search(r"\*\((uint4|uint2|half4)\*\)\(\w+_ptr \+ [^;]* = ", body)


def test_products_in_fp32_read_vectors_of_shared_memory(monkeypatch):
    model = conv(64, 64, 14, 1, pad=0)
    body, _source = kernel(model, "gemm_simt", monkeypatch, algorithms={"layer": "gemm"})
    assert re.search(r"ptx_cp_async_\w*cg_16", body)
    assert "float4*)(((float*)buf_dyn_shmem_ptr)" in body.replace(" ", "")
    assert "mma_sync" not in body


@pytest.mark.nvcc
@pytest.mark.parametrize("dtype", FAMILY)
def test_kernels_spill_no_registers(dtype, monkeypatch, tmp_path):
    options = {"dtype": dtype, "algorithms": {"layer": "gemm"}}
    _body, source = kernel(conv(128, 128, 56), FAMILY[dtype], monkeypatch, **options)
    file = tmp_path / "kernels.cu"
    file.write_text(source)
    command = ["nvcc", "-std=c++17", "-arch=sm_80", "-cubin", "-Xptxas", "-v", "-o"]
    done = subprocess.run(
        [*command, str(tmp_path / "kernels.cubin"), str(file)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    spilled = re.findall(r"(\d+) bytes spill stores", done.stderr)
    assert spilled
    assert set(spilled) == {"0"}, done.stderr


def test_small_layers_use_other_families():
    with closing(tvmflow.compile(conv(8, 8, 5), target="cuda", dtype="fp16")) as module:
        assert "gemm_tensor" not in {e["family"] for e in module.metadata["schedules"].values()}


def test_weights_beyond_16_bits_are_not_rounded_to_infinity():
    model = conv(64, 64, 14)
    weights = numpy_helper.to_array(model.graph.initializer[1]).copy()
    weights[3, 4, 1, 2] = 7e4
    model.graph.initializer[1].CopyFrom(numpy_helper.from_array(weights, "w"))
    with closing(tvmflow.compile(model, target="cuda", dtype="fp16")) as module:
        (choice,) = [c for c in module.metadata["algorithms"] if c["convolution"] == "layer"]
    assert choice["algorithm"] != "gemm"


def test_a_product_is_refused_for_other_targets():
    with pytest.raises(CompileError, match="its schedules are for the target cuda"):
        tvmflow.compile(conv(16, 16, 5), target="llvm", algorithms={"layer": "gemm"})


# -- tensors in 16 bits ---------------------------------------------------------------------------


@pytest.mark.cuda_host
@pytest.mark.onnxruntime
def test_every_family_reads_and_writes_tensors_in_16_bits():
    model = network()
    feeds = feeds_for(model)
    outputs, families = run(model, feeds, dtype="fp16")
    assert {"conv2d", "conv2d_1x1", "depthwise", "grouped", "conv2d_transpose"} <= set(families)
    assert_close(outputs["y"], expected(model, feeds)[0], STORED_AS_HALF)


def test_sums_are_taken_in_fp32_and_rounded_once():
    """This also holds if the anchor itself writes a 16-bit tensor: the first has no epilogue."""
    x, w = te.placeholder((4, 64), name="x"), te.placeholder((64, 8), name="w")
    k = te.reduce_axis((0, 64), name="k")
    y = te.compute((4, 8), lambda i, j: te.sum(x[i, k] * w[k, j], axis=k), name="y")
    function = te.create_prim_func([x, w, y])
    half = with_types(with_scopes(function, [HALF_BUFFER, None, HALF_BUFFER]))
    assert [str(p.dtype) for p in half.params] == ["float16", "float32", "float16"]
    script = half.script()
    assert 'y_sums[v_i, v_j] + T.Cast("float32", x[v_i, v_k]) * w[v_k, v_j]' in script
    assert re.search(r'y\[v_i0, v_i1\] = T\.Cast\("float16", y_sums\[v_i0, v_i1\]\)', script)
