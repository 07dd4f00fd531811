"""Tensors that are a buffer on one side and a texture on the other: one copy, and right."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from support.onnx_models import expected as onnx_runtime
from support.onnx_models import model_of

import tvmflow
from tvmflow.devices.target import PRESETS
from tvmflow.graph.storage.uses import Traffic, prefers_texture
from tvmflow.verify.tolerance import assert_close

SHAPE = (1, 2, 5, 7, 4)


def network(*outputs: str) -> onnx.ModelProto:
    """Five axes with texels of their own; ``c`` is written by a function with TVM's schedule."""
    shape = (1, 2, 1, 7, 4)
    updates = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    constants = {"axis": np.array([3]), "rows": np.full(shape, 3, np.int64), "updates": updates}
    nodes = """
        r = Relu(x) c = ScatterElements<axis = 2>(r, rows, updates) s = Sigmoid(c)
        m = ReduceMax(x, axis) y = Mul(s, m) m2 = ReduceMax(c, axis) z = ReduceMax(r, axis)
    """
    model = model_of(nodes, {"x": SHAPE}, dict.fromkeys(outputs), constants, opset=18)
    return onnx.shape_inference.infer_shapes(model)


def run(model, **options):
    """Compile and compare with ONNX Runtime; placements by name, and the module's metadata."""
    x = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
    expected = onnx_runtime(model, {"x": x})
    with tvmflow.compile(model, device="adreno", **options) as module:
        for got, want in zip(module(x=x), expected, strict=True):
            assert_close(got, want)
        metadata = module.metadata
    return {p["tensor"]: p for p in metadata["placements"]}, metadata


def copies(placed):
    return {name: p["storage"] for name, p in placed.items() if p["cause"] == "copy"}


@pytest.mark.opencl
@pytest.mark.parametrize(
    ("outputs", "expected"),
    [
        (("y",), {"x_texture": "texture", "c_texture": "texture"}),
        (("r", "z"), {"x_texture": "texture", "r_buffer": "buffer"}),
        # All of what reads and writes r as a buffer shares its copy.
        (
            ("y", "r", "m2", "z", "c"),
            {"x_texture": "texture", "r_buffer": "buffer", "c_texture": "texture"},
        ),
    ],
    ids=lambda value: "_".join(value) if isinstance(value, tuple) else "",
)
def test_a_copy_serves_all_readers_of_one_side(outputs, expected):
    placed, metadata = run(network(*outputs), storage="texture")
    assert copies(placed) == expected
    assert placed["x_texture"]["reason"] == "a copy of x, an input of the model: asked for"
    tensors = {t["name"]: t for t in metadata["memory"]["tensors"]}
    for name, storage in expected.items():
        assert tensors[name]["storage"] == storage
        assert tensors[name]["producer"].startswith("copy")
    assert tensors["x_texture"]["image"] == "7x10"


@pytest.mark.opencl
def test_buffers_are_never_copied():
    placed, _ = run(network("y", "r", "z"), storage="buffer")
    assert not copies(placed)
    assert {p["storage"] for p in placed.values()} == {"buffer"}


@pytest.mark.opencl
def test_the_cost_of_the_copy_decides():
    # Every texel is read once or twice here: no copy pays.
    placed, _ = run(network("y", "r", "z"), storage="auto")
    assert not copies(placed)
    assert "with its copy" in placed["x"]["reason"]
    assert placed["x"]["reason"].startswith("an input of the model: cost")


@pytest.mark.opencl
@pytest.mark.parametrize("name", ["x", "x_texture"])
def test_a_copy_is_asked_for_and_refused_by_name(name):
    placed, _ = run(network("y"), storage="auto", storage_overrides={name: "texture"})
    assert copies(placed) == {"x_texture": "texture"}
    assert placed["x_texture"]["reason"].endswith("asked for by name")
    placed, _ = run(network("y"), storage="texture", storage_overrides={name: "buffer"})
    assert copies(placed) == {"c_texture": "texture"}


@pytest.mark.opencl
def test_half_textures_are_copies_of_inputs_that_stay_fp32():
    x = np.random.default_rng(1).standard_normal(SHAPE).astype(np.float32)
    options = {"device": "adreno", "storage": "texture", "dtype": "fp16", "accumulate": "fp32"}
    with tvmflow.compile(network("z"), **options) as module:
        (got,) = module(x=x)
        stored = {p["tensor"]: p["stored_as"] for p in module.metadata["placements"]}
    assert (stored["x"], stored["x_texture"]) == ("float32", "float16")
    np.testing.assert_array_equal(
        got, np.maximum(x, 0).astype(np.float16).max(3, keepdims=True).astype(np.float32)
    )


@pytest.mark.parametrize(
    ("copy", "texture"), [("", 2800), ("texture", 2800 + 100 + 125), ("buffer", 2800 + 100 + 100)]
)
def test_the_formula_with_a_copy(copy, texture):
    # nvidia: written at 0.8, streamed at 1.0, cached at 0.5
    traffic = Traffic(writes=0, unique=100, reads=1450)
    _, reason = prefers_texture(traffic, PRESETS["nvidia"], copy)
    how = "as texture, with its copy," if copy else "as texture"
    assert reason == f"cost {texture:,} {how} > 1,450 as buffer"
