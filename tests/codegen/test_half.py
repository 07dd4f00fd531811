"""Storage in 16 bits: half the memory, and what it cannot hold.

That it is right to the precision of its rounding, ``test_networks.py`` shows.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
import tvm
from support.networks import fire

import tvmflow
from tvmflow.errors import TargetError
from tvmflow.models import build


def bytes_of(path: Path, storage: str, dtype: str) -> tuple[int, int]:
    """Return the memory of intermediate tensors, and of the weights in the file."""
    module = tvmflow.compile(path, device="adreno", storage=storage, dtype=dtype)
    weights = sum(w.nbytes for w in module.artifact.weights.values())
    peak = module.metadata["memory"]["peak_bytes"]
    module.close()
    return peak, weights


@pytest.mark.parametrize("storage", ["texture", "buffer"])
def test_memory_of_mobilenet(storage, tmp_path):
    path = tmp_path / "model.onnx"
    build("mobilenet_v2", path, size=32, width=0.35)
    half, whole = (bytes_of(path, storage, dtype) for dtype in ("fp16", "fp32"))
    assert half[0] <= 0.55 * whole[0]
    assert half[1] <= 0.55 * whole[1]


@pytest.mark.opencl
def test_values_that_16_bits_cannot_hold_stay_whole(rng):
    model = fire()
    for tensor in model.graph.initializer:
        if tensor.name == "c1":  # a bias
            array = onnx.numpy_helper.to_array(tensor).copy()
            array[0] = 1e6
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, "c1"))
    module = tvmflow.compile(
        model, target="opencl", device="adreno", storage="texture", dtype="fp16", accumulate="fp32"
    )
    with module:
        whole = [w for w in module.artifact.weights.values() if w.dtype == np.float32]
        assert any(1e6 in w for w in whole)


def large_norms(storage: str) -> tvmflow.Module:
    """Norms of 1200: their squares are no halves."""
    model = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 17]>
        g (float[1,16,8,8] x) => (float[1,16,8,8] y) {
            n = LpNormalization<axis=1, p=2>(x)
            y = MaxPool<kernel_shape=[3,3], pads=[1,1,1,1]>(n)
        }"""
    )
    return tvmflow.compile(model, device="adreno", storage=storage, dtype="fp16", accumulate="fp32")


@pytest.mark.opencl
@pytest.mark.parametrize("storage", ["texture", "buffer"])
def test_what_an_operator_has_within_it_stays_whole(storage, rng):
    x = rng.uniform(250, 350, (1, 16, 8, 8)).astype(np.float32)
    with large_norms(storage) as module:
        stored = {p["tensor"]: p["stored_as"] for p in module.metadata["placements"]}
        y = module({"x": x})["y"]
    assert set(stored.values()) == {"float16", "float32"}
    normal = np.pad(x / np.linalg.norm(x, axis=1, keepdims=True), [(0, 0)] * 2 + [(1, 1)] * 2)
    windows = np.lib.stride_tricks.sliding_window_view(normal, (3, 3), (2, 3))
    np.testing.assert_allclose(y, windows.max((4, 5)), rtol=2e-3)


#: Halves that are rounded (to even), subnormal, the largest, and what is none of these.
VALUES = [1.0, 1 / 3, 2049.0, 2051.0, 6e-8, 3e-6, -65504.0, 65520.0, np.inf, -np.inf, np.nan, -0.0]


@pytest.mark.opencl
@pytest.mark.parametrize(
    "scope", ["global.half", "global.texture-half:0.1", "global.texture-half:p1"]
)
def test_copies_round_as_numpy_does(scope, rng):
    if "texture" in scope and not _has_images():
        pytest.skip("the OpenCL device has no images")
    values = np.concatenate([VALUES, rng.standard_normal(228) * 100]).astype(np.float32)
    shape = (1, 5, 3, 4, 4)
    tensor = tvm.runtime.empty(shape, "float32", tvm.opencl(), mem_scope=scope)
    tensor.copyfrom(values.reshape(shape))
    with np.errstate(over="ignore"):
        expected = values.astype(np.float16).astype(np.float32)
    got = tensor.numpy().ravel()
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(np.signbit(got), np.signbit(expected))


def _has_images() -> bool:
    from tvmflow.runtime.devices import list_devices

    return next(d for d in list_devices() if d.kind == "opencl").images


@pytest.mark.parametrize(
    ("target", "dtype", "message"),
    [
        ("opencl", "fp8", "The dtype 'fp8' is not known; expected one of fp32, fp16"),
        ("llvm", "fp16", "asked for the target llvm; only opencl and cuda have it"),
    ],
)
def test_impossible_choices(target, dtype, message):
    with pytest.raises(TargetError, match=message):
        tvmflow.compile(fire(), target=target, device="cpu", dtype=dtype)
