"""ONNX's interface for backends, and ONNX's own test runner on it."""

from __future__ import annotations

import unittest

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import helper
from onnx.backend.test import BackendTest

from tvmflow import backend
from tvmflow.errors import InputError, UnsupportedModelError

#: Cases whose expected values are wrong by more than their own tolerance, and why.
EXCLUDED = {
    "test_dft_inverse": "expected values have the rounding noise of a transform in fp32",
}
#: Cases without weights of a hub, which would be downloaded.
KINDS = ("NodeModel", "SimpleModel", "PyTorchConvertedModel", "PyTorchOperatorModel")


class OnDevice(backend.TvmflowBackend):
    """The backend for the runner, which knows the devices CPU and CUDA only."""

    device = "CPU"

    @classmethod
    def prepare(cls, model, device="CPU", **options):
        tolerances = {"rtol", "atol"}
        kept = {name: value for name, value in options.items() if name not in tolerances}
        return backend.prepare(model, cls.device, **kept)

    @classmethod
    def supports_device(cls, device):
        return device == "CPU"


def cases():
    """Return the runner's functions by test name."""
    items = BackendTest(OnDevice, __name__)._test_items
    of_kind = (pair for kind in KINDS for pair in items[kind].items())
    return {name[:-4]: item.func for name, item in of_kind if name.endswith("_cpu")}


CASES = cases()


@pytest.fixture(autouse=True)
def no_cache(monkeypatch):
    monkeypatch.setenv("TVMFLOW_CACHE", "0")


@pytest.mark.slow
@pytest.mark.parametrize("device", ["CPU", pytest.param("OPENCL", marks=pytest.mark.opencl)])
@pytest.mark.parametrize("name", sorted(CASES))
def test_onnx_runner(name, device, monkeypatch):
    if reason := next((why for start, why in EXCLUDED.items() if name.startswith(start)), None):
        pytest.skip(reason)
    monkeypatch.setattr(OnDevice, "device", device)
    try:
        CASES[name](unittest.TestCase())
    except UnsupportedModelError as error:
        pytest.skip(f"refused: {error}")


def test_a_model_is_prepared_once_and_run_on_arrays():
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        two (float[N, 3] x, float[3] b) => (float[N, 3] sum, float[N, 3] product)
        { sum = Add(x, b)
          product = Mul(x, b) }
        """)
    prepared = backend.prepare(model)
    b = np.array([1, 2, 3], np.float32)
    for rows in (2, 5):
        x = np.random.default_rng(rows).standard_normal((rows, 3)).astype(np.float32)
        found = prepared.run([x, b])
        np.testing.assert_allclose(found.sum, x + b, rtol=1e-6)
        np.testing.assert_allclose(found[1], x * b, rtol=1e-6)
    (total, _) = backend.run_model(model, [x, b])
    np.testing.assert_allclose(total, x + b, rtol=1e-6)
    with pytest.raises(InputError, match=r"1 inputs were given, but the model has 2: x, b"):
        prepared.run([x])


def test_a_node_runs_alone():
    node = helper.make_node("TopK", ["x", "k"], ["values", "indices"], axis=1)
    x = np.array([[3, 1, 4, 1.5], [2, 7, 1, 8]], np.float32)
    found = backend.run_node(node, [x, np.array([2], np.int64)])
    np.testing.assert_array_equal(found.values, [[4, 3], [8, 7]])
    np.testing.assert_array_equal(found.indices, [[2, 0], [3, 1]])
    left_out = helper.make_node("Clip", ["x", "", "most"], ["y"])
    outputs = [(np.float32, x.shape)]
    (found,) = backend.run_node(left_out, [x, np.float32(2)], outputs_info=outputs)
    np.testing.assert_array_equal(found, np.minimum(x, 2))


def test_devices():
    assert backend.supports_device("CPU")
    assert backend.supports_device("CPU:0")
    assert not backend.supports_device("TPU")
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) { y = Neg(x) }'
    )
    with pytest.raises(InputError, match=r"(?s)no device 'TPU'.*CPU, OPENCL, CUDA"):
        backend.prepare(model, "TPU")


@pytest.mark.opencl
def test_a_model_runs_on_opencl():
    assert backend.supports_device("OPENCL")
    node = helper.make_node("Relu", ["x"], ["y"])
    x = np.linspace(-1, 1, 30, dtype=np.float32).reshape(1, 5, 2, 3)
    (found,) = backend.run_node(node, [x], "OPENCL")
    np.testing.assert_array_equal(found, np.maximum(x, 0))
