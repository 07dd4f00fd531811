"""Weights of 2 and 4 bits are imported as bytes, or refused because of their readers."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from reference import assert_right, evaluator_results, load_and_run

from tvmflow.errors import UnsupportedModelError
from tvmflow.frontend import load_model

TYPES = [("INT4", -8, 8), ("UINT4", 0, 16), ("INT2", -2, 2), ("UINT2", 0, 4)]


def model(name, low, high, reader):
    """Build a product with weights in blocks of four, or another reader of such weights."""
    rng, kind = np.random.default_rng(0), getattr(TensorProto, name)
    weights = helper.make_tensor("w", kind, [6, 8], rng.integers(low, high, 48).tolist())
    zeros = helper.make_tensor("z", kind, [6, 2], rng.integers(low, high, 12).tolist())
    scales = numpy_helper.from_array(rng.uniform(0.1, 1, (6, 2)).astype(np.float32), "s")
    nodes = {
        "DequantizeLinear": helper.make_node(
            "DequantizeLinear", ["w", "s", "z"], ["d"], axis=1, block_size=4
        ),
        "Cast": helper.make_node("Cast", ["w"], ["d"], to=TensorProto.FLOAT),
        "Identity": helper.make_node("Identity", ["w"], ["d"], name="reader"),
    }
    graph = helper.make_graph(
        [nodes[reader], helper.make_node("MatMul", ["x", "d"], ["y"])],
        "packed",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [5, 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [5, 8])],
        [weights, zeros, scales],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=11)


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
