"""Powers of vectors of doubles, which PoCL mixes up where one base is negative or zero."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper
from support.operators import single

import tvmflow


def whole_powers(shape):
    """Integers to the power of integers, which are computed in float64."""
    names = ("x", "y")
    values = [helper.make_tensor_value_info(name, TensorProto.INT64, shape) for name in names]
    result = helper.make_tensor_value_info("z", TensorProto.INT64, shape)
    graph = helper.make_graph([helper.make_node("Pow", names, ["z"])], "powers", values, [result])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)], ir_version=8)


@pytest.mark.parametrize("lanes", [3, 8, 16])
@pytest.mark.parametrize("target", ["llvm", pytest.param("opencl", marks=pytest.mark.opencl)])
def test_whole_powers_of_whole_numbers(target, lanes):
    rng = np.random.default_rng(lanes)
    x, y = rng.integers(-9, 10, (100, lanes)), rng.integers(0, 6, (100, lanes))
    with tvmflow.compile(whole_powers(x.shape), target=target) as module:
        np.testing.assert_array_equal(module(x=x, y=y)["z"], x**y)


@pytest.mark.opencl
def test_other_vectors_keep_their_function(tmp_path):
    model = single("Pow", [(64, 16), (64, 16)])
    with tvmflow.compile(model, target="opencl", dump_ir=tmp_path):
        (path,) = tmp_path.glob("*_build.*.opencl")
    assert "tvmflow_pow" not in path.read_text()
