"""Weights of 2 and 4 bits are imported as bytes, or refused because of their readers."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper
from reference import assert_right, evaluator_results, load_and_run
from support.onnx_models import model_of

from tvmflow.errors import UnsupportedModelError
from tvmflow.frontend.load import load_model

TYPES = [("INT4", -8, 8), ("UINT4", 0, 16), ("INT2", -2, 2), ("UINT2", 0, 4)]


def model(name, low, high, reader):
    """Build a product with weights in blocks of four, or another reader of such weights."""
    rng, kind = np.random.default_rng(0), getattr(TensorProto, name)
    weights = helper.make_tensor("w", kind, [6, 8], rng.integers(low, high, 48).tolist())
    zeros = helper.make_tensor("z", kind, [6, 2], rng.integers(low, high, 12).tolist())
    constants = {"w": weights, "z": zeros, "s": rng.uniform(0.1, 1, (6, 2)).astype(np.float32)}
    nodes = {
        "DequantizeLinear": "d = DequantizeLinear<axis = 1, block_size = 4>(w, s, z)",
        "Cast": "d = Cast<to = 1>(w)",
        "Identity": "[reader] d = Identity(w)",
    }
    text = f"{nodes[reader]} y = MatMul(x, d)"
    return model_of(text, {"x": [5, 6]}, {"y": [5, 8]}, constants, opset=25, ir_version=11)


@pytest.mark.parametrize("reader", ["DequantizeLinear", "Cast"])
@pytest.mark.parametrize(("name", "low", "high"), TYPES)
def test_packed_weights(name, low, high, reader):
    network = model(name, low, high, reader)
    feeds = {"x": np.random.default_rng(1).standard_normal((5, 6), np.float32)}
    wanted = evaluator_results(network, feeds)
    assert wanted is not None
    assert_right(load_and_run(network, feeds), wanted)


def test_other_readers_are_refused():
    with pytest.raises(UnsupportedModelError, match="INT4 and is read by node 'reader'") as caught:
        load_model(model("INT4", -8, 8, "Identity"))
    assert caught.value.remedy


def test_limits_of_a_type_come_from_its_weights():
    constants = {"s": np.float32(0.5), "z": helper.make_tensor("z", TensorProto.INT4, [], [1])}
    text = "q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z)"
    imported = load_model(model_of(text, {"x": [5]}, {"y": [5]}, constants, opset=21))
    used = [names for node in imported.initializers.values() for _, names in node]
    assert {name for names in used for name in names} == {"s", "z"}
