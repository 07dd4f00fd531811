"""Chunked sums of products in halves: their loops, error bound and measured error.

:func:`chunks_fit` rules out overflow; the rest of the option is in ``test_accumulate.py``.
"""

from __future__ import annotations

import re

import numpy as np
import pytest
from onnx import helper
from onnx.shape_inference import infer_shapes
from support.half_device import half_device
from support.onnx_models import expected, model_of
from tvm import s_tir, te, tirx
from tvm.ir.transform import Sequential

import tvmflow
from tvmflow.codegen import tir_pipeline
from tvmflow.codegen.chunked_sums import SumInChunks
from tvmflow.ir.expressions import nodes_in
from tvmflow.ir.half_sums import CHUNK, LARGEST_INPUT, chunks_fit, error_bound
from tvmflow.schedules.definitions import term
from tvmflow.verify.tolerance import HALF_ROUNDING, OPERATOR, compare

#: Operators by name: shape of the input, of the weights, attributes, and products of a sum.
LAYERS = {
    "window": ("Conv", (1, 518, 3, 5), (6, 518, 3, 3), {"pads": [1] * 4}, 9 * 518),
    "deep": ("Conv", (1, 512, 7, 7), (10, 512, 1, 1), {}, 512),
    "pointwise": ("Conv", (1, 147, 9, 7), (5, 147, 1, 1), {}, 147),
    "first": ("Conv", (1, 3, 23, 21), (7, 3, 7, 7), {"strides": [2] * 2}, 147),
    "depthwise": ("Conv", (1, 6, 13, 11), (6, 1, 9, 9), {"group": 6}, 81),
    "groups": ("Conv", (1, 74, 5, 7), (16, 37, 3, 3), {"group": 2}, 9 * 37),
    "grouped": ("Conv", (1, 74, 5, 7), (6, 37, 3, 3), {"group": 2}, 9 * 37),
    "transposed": ("ConvTranspose", (1, 75, 5, 4), (75, 6, 3, 3), {"strides": [2] * 2}, 9 * 75),
    "rows": ("MatMul", (9, 515), (515, 6), {}, 515),
    "row": ("MatMul", (1, 2310), (2310, 7), {}, 2310),
    "average": ("AveragePool", (1, 6, 9, 8), None, {"kernel_shape": [7, 7]}, 49),
    # The items of a group share its sums.
    "split": ("Conv", (1, 512, 7, 7), (23, 512, 1, 1), {}, 512),
}


def network(names, weights):
    """Return a model with a layer of each name, each with its own input and result."""
    nodes, inputs = [], {}
    for name in names:
        operator, inputs[f"x_{name}"], _, attributes, _ = LAYERS[name]
        arguments = [f"x_{name}", *([f"w_{name}"] if name in weights else [])]
        nodes.append(helper.make_node(operator, arguments, [name], **attributes))
    constants = {f"w_{name}": weights[name] for name in names if name in weights}
    return infer_shapes(model_of(nodes, inputs, list(names), constants, opset=18))


def values(kind, rng, shape):
    """Return halves of either sign, of one sign, or all equal."""
    if kind == "ones":
        return np.ones(shape, np.float32)
    drawn = rng.standard_normal(shape) if kind == "normal" else rng.uniform(0.5, 1, shape)
    return drawn.astype(np.float16).astype(np.float32)


def results(kind, accumulate, names, device, storage, folder, rng):
    """Return by name the computed and the right result, and the sum of the products' magnitudes."""
    shapes = {name: LAYERS[name][2] for name in names}
    weights = {n: values(kind, rng, shape) for n, shape in shapes.items() if shape is not None}
    feeds = {f"x_{name}": values(kind, rng, LAYERS[name][1]) for name in names}

    def reference(weights, feeds):
        return dict(zip(names, expected(network(names, weights), feeds), strict=True))

    options = {"device": device, "storage": storage, "dtype": "fp16"}
    options |= {"accumulate": accumulate} if accumulate else {}
    module = tvmflow.compile(network(names, weights), **options)
    assert module.metadata["options"]["accumulate"] == (accumulate or "mixed")
    got = half_device().run(module, feeds, folder)
    right = reference(weights, feeds)
    magnitudes = reference(*({k: abs(v) for k, v in d.items()} for d in (weights, feeds)))
    return {name: (got[name], right[name], magnitudes[name]) for name in names}


def share_of_bound(name, got, right, magnitude):
    """Return the largest error divided by its bound, plus one rounding of the reference."""
    length = LAYERS[name][4]
    return (np.abs(got - right) / ((error_bound(length) + 1e-6) * magnitude)).max()


@pytest.mark.opencl
@pytest.mark.onnxruntime
@pytest.mark.parametrize(
    ("kind", "device", "storage"),
    [
        ("normal", "adreno", "texture"),
        pytest.param("ones", "adreno", "texture", marks=pytest.mark.slow),
        ("positive", "mali", "buffer"),
    ],
)
def test_every_family_keeps_the_bound(kind, device, storage, rng, tmp_path):
    *others, split = LAYERS
    for names in (others, [split]):
        found = results(kind, None, names, device, storage, tmp_path, rng)
        for name, (got, right, magnitude) in found.items():
            assert share_of_bound(name, got, right, magnitude) <= 1, name
            if kind == "normal":
                assert compare(name, got, right, OPERATOR["float16"]).passed, name


@pytest.mark.opencl
@pytest.mark.onnxruntime
@pytest.mark.parametrize("kind", ["ones", "normal"])
def test_whole_sums_in_halves_break_it(kind, rng, tmp_path):
    """Numbers of one sign break the bound, and random ones an operator's tolerance."""
    found = results(kind, "fp16", ["window"], "adreno", "texture", tmp_path, rng)
    got, right, magnitude = found["window"]
    if kind == "ones":
        assert got.max() == 2048
        assert share_of_bound("window", got, right, magnitude) > 10
    else:
        assert not compare("window", got, right, OPERATOR["float16"]).passed


def test_the_bound_is_that_of_one_chunk():
    assert error_bound(9) == pytest.approx(9 * HALF_ROUNDING, rel=0.01)
    assert error_bound(CHUNK) == pytest.approx(0.0199, rel=0.01)
    assert error_bound(100 * CHUNK) < error_bound(CHUNK) + 1e-5


@pytest.mark.parametrize("channels", [1, 37])
def test_a_chunk_of_large_weights_would_overflow(channels):
    """Neither the weights of the other channels count nor those after the largest 40."""
    weight = np.full((3, channels, 3, 3), 0.01, np.float32)
    weight[1] = 65504 / LARGEST_INPUT / min(CHUNK, 9 * channels) * 0.99
    assert chunks_fit(weight)
    assert not chunks_fit(weight * 1.02)


def test_layers_of_large_weights_are_summed_in_fp32(tmp_path):
    weights = {n: np.full(LAYERS[n][2], 1, np.float32) for n in ("pointwise", "rows")}
    weights["rows"] *= 7
    module = tvmflow.compile(network([*weights], weights), device="adreno", dtype="fp16")
    assert module.metadata["half_sums"] == [CHUNK]


def lowered_products(scope):
    """Return a lowered, unscheduled sum of products of halves, stored in this scope."""
    x, w = te.placeholder((5, 90), name="x"), te.placeholder((90,), name="w")
    k = te.reduce_axis((0, 90), name="k")
    y = te.compute((5,), lambda i: te.sum(term(x[i, k], w[k], "mixed"), axis=k), name="y")
    z = te.compute((5,), lambda i: y[i] + 1, name="z")
    sch = s_tir.Schedule(te.create_prim_func([x, w, z]))
    block = sch.get_sblock("y")
    sch.set_scope(block, 0, scope)
    sch.decompose_reduction(block, sch.get_loops(block)[1])
    passes = tir_pipeline.HOST_AND_DEVICE[: tir_pipeline.HOST_AND_DEVICE.index(SumInChunks)]
    return SumInChunks(Sequential(passes)(sch.mod))["main"]


def test_sums_in_private_memory_have_chunks():
    function = lowered_products("local")
    buffers = {n.buffer.name: n.buffer for n in nodes_in(function.body, tirx.AllocBuffer)}
    chunk, sums = buffers["y_local_chunk"], buffers["y_local"]
    assert (chunk.dtype, sums.dtype) == ("float16", "float32")
    extents = [str(loop.extent) for loop in nodes_in(function.body, tirx.For)]
    # 90 products are three chunks of 30.
    assert sorted(extents) == ["3", "30", "5", "5"], extents


def test_products_that_go_elsewhere_are_taken_in_fp32():
    """They are lowered as if halves were not requested, without a conversion of each product."""
    function = lowered_products("global")
    assert not [n for n in nodes_in(function.body, tirx.Cast) if "16" in str(n.ty.dtype)]
    assert "chunk" not in str(function)


def test_chunks_are_as_long_as_they_may_be(tmp_path):
    """Loops around products, by layer; unrolled products are written out."""
    rng = np.random.default_rng(0)
    names = ["window", "pointwise", "split"]
    weights = {n: values("normal", rng, LAYERS[n][2]) for n in names}
    options = {"device": "adreno", "storage": "texture", "dtype": "fp16", "dump_ir": tmp_path}
    tvmflow.compile(network(names, weights), **options).close()
    text = next(tmp_path.glob("8_build.*.opencl")).read_text()
    bodies = re.split(r"__kernel void (\w+)\([^;{]*\{", text)[2::2]
    sums = [body for body in bodies if "chunk_ptr" in body]
    assert all("READ_IMAGEH(" in body and "convert_float4(" in body for body in sums)
    loops = [re.findall(r"for \(int \w+ = 0; \w+ < ([^;]+);", body) for body in sums]
    assert len(loops) == len(names)
    window, pointwise, split = loops
    # 130 blocks, one row of taps at a time; the products of the two padding channels are left out.
    assert window == ["130", "tvmflow_times(3)"]
    # 37 blocks of channels, of which the last has three channels: ten blocks are 40 products.
    assert pointwise[0] == "4"
    length = r"min\(\(int\)10, \(int\)\(37 - (cse_v\d+|\(\w+ \* 10\))\)\)"
    assert re.fullmatch(rf"tvmflow_times\({length}\)", pointwise[1])
    # Eight items have 16 blocks each.
    assert split == ["2", "tvmflow_times(8)"]
