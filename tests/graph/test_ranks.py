"""The largest elements of rows that have many alike, ranked and sorted."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

import tvmflow


def compiled(shape, k, axis, largest):
    dims = [k if a == axis else n for a, n in enumerate(shape)]
    graph = helper.make_graph(
        [helper.make_node("TopK", ["x", "k"], ["y", "i"], axis=axis, largest=largest)],
        "top",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, dims),
         helper.make_tensor_value_info("i", TensorProto.INT64, dims)],
        [helper.make_tensor("k", TensorProto.INT64, [1], [k])],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    return tvmflow.compile(model, target="opencl")


@pytest.mark.opencl
@pytest.mark.parametrize(
    ("shape", "k", "axis"),
    [((5, 31), 7, 1), ((31, 5), 31, 0), ((3, 1), 1, 1), ((2, 7, 9), 3, 1),
     pytest.param((2, 1500), 40, 1, marks=pytest.mark.slow)],
)  # fmt: skip
@pytest.mark.parametrize("largest", [0, 1])
def test_of_equal_elements_the_first_wins(shape, k, axis, largest):
    x = np.random.default_rng(0).integers(-2, 3, shape).astype(np.float32)
    x.reshape(-1)[::7] = np.inf
    x.reshape(-1)[::11] = -np.inf
    with compiled(shape, k, axis, largest) as module:
        found = module(x=x)
        order = np.argsort(-x if largest else x, axis=axis, kind="stable")
        wanted = np.take(order, range(k), axis)
        np.testing.assert_array_equal(np.asarray(found["i"]), wanted)
        np.testing.assert_array_equal(np.asarray(found["y"]), np.take_along_axis(x, wanted, axis))
