"""Nodes on constants and on run-time inputs compute the results of ONNX Runtime.

ONNX's reference evaluator, which folds data movement and arithmetic at import, has other results
for many of these.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
from onnx import TensorProto, helper
from reference import check, node_model, run

from tvmflow.frontend.load import load_model

pytestmark = pytest.mark.onnxruntime


class Case(NamedTuple):
    """A node, whose inputs are shapes of random numbers, or arrays that are always constant."""

    op_type: str
    opset: int
    inputs: list[Any]
    attributes: Mapping[str, Any] = MappingProxyType({})
    results: int = 1


def integers(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


CASES = {
    "softmax of all further axes": Case("Softmax", 11, [(2, 3, 4)]),
    "hardmax of all further axes": Case("Hardmax", 11, [(2, 3, 4)]),
    "logarithm of a small softmax": Case("LogSoftmax", 13, [np.float32([[3, -120, 60]])]),
    "batch normalization": Case(
        "BatchNormalization", 11, [(2, 3, 4, 4), (3,), (3,), (3,), np.float32([1, 2, 0.5])]
    ),
    "pool's places": Case("MaxPool", 13, [(1, 3, 9)], {"kernel_shape": [3]}, 2),
    "pool's padding": Case(
        "MaxPool", 13, [(1, 2, 8, 8)], {"kernel_shape": [3, 3], "pads": [2, 1, 0, 1]}
    ),
    "windows that hang over": Case(
        "LpPool", 18, [(1, 3, 9)], {"kernel_shape": [2], "strides": [4], "ceil_mode": 1}
    ),
    "transposed groups": Case(
        "ConvTranspose", 13, [(1, 4, 5, 5), (4, 1, 3, 3), (4,)], {"group": 4}
    ),
    "sums of magnitudes": Case("LpNormalization", 13, [(3, 4)], {"p": 1, "axis": 0}),
    "a factor that fp32 rounds": Case(
        "Resize", 13, [(1, 1, 4, 5), None, np.float32([1, 1, 1.5, 1.4])], {"mode": "linear"}
    ),
    "a cropped axis that repeats": Case(
        "Pad", 19, [(5, 5), integers(4, -1, 2, 4)], {"mode": "wrap"}
    ),
    "cubic samples": Case(
        "GridSample", 20, [(1, 2, 4, 4), (1, 3, 3, 2)], {"mode": "cubic", "padding_mode": "border"}
    ),
    "a grid of one row": Case(
        "AffineGrid", 20, [(1, 2, 3), integers(1, 2, 1, 4)], {"align_corners": 1}
    ),
    "labels that do not count": Case(
        "NegativeLogLikelihoodLoss", 13, [(4, 3), integers(0, -1, 2, -1)], {"ignore_index": -1}
    ),
    "squares of integers": Case("ReduceSumSquare", 13, [np.arange(6, dtype=np.int32)]),
    "sequences of several lengths": Case(
        "LSTM", 14, [(5, 2, 3), (1, 16, 3), (1, 16, 4), None, np.int32([2, 5])], {"hidden_size": 4}
    ),
    "a step back": Case("Slice", 13, [(6,), *map(integers, (-8, -100, 0, -1))]),
    "short indices": Case(
        "ScatterElements", 18, [(4, 4, 6), np.tile([1, 3], (4, 2, 1)), (4, 2, 2)], {"axis": 2}
    ),
    "no indices": Case("ScatterND", 18, [(4, 2), np.zeros((0, 1), np.int64), (0, 2)]),
    "pool of bytes": Case("MaxPool", 13, [np.uint8([[[4, 7, 200, 3, 9]]])], {"kernel_shape": [3]}),
    "pool of signed bytes": Case(
        "MaxPool", 13, [np.arange(-60, 68, dtype=np.int8).reshape(1, 2, 4, 4, 4)],
        {"kernel_shape": [2, 3, 2], "pads": [1, 1, 1, 0, 0, 0]},
    ),
}  # fmt: skip


@pytest.mark.parametrize("constant", [True, False], ids=["constant", "at run time"])
@pytest.mark.parametrize("name", CASES)
def test_nodes(name, constant, rng):
    """Results equal ONNX Runtime's, with constant and with run-time inputs."""
    op_type, opset, given, attributes, results = CASES[name]
    values = [
        (rng.standard_normal(v, np.float32), constant)
        if isinstance(v, tuple)
        else (v, constant or index > 0)
        for index, v in enumerate(given)
    ]
    model, feeds = node_model(op_type, values, opset, results, **attributes)
    if constant:
        model.graph.input.append(helper.make_tensor_value_info("also", TensorProto.FLOAT, [1]))
        model.graph.node.append(helper.make_node("Abs", ["also"], ["z"]))
        model.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, [1]))
        feeds["also"] = np.float32([-2])
    check(model, feeds)


def test_only_places_of_a_pool_are_asked_for(rng):
    model, feeds = node_model("MaxPool", [((rng.random((1, 3, 9), np.float32)), False)], 13, 2,
                              kernel_shape=[3])  # fmt: skip
    del model.graph.output[0]
    check(model, feeds)


def test_more_places_than_bytes_have():
    """ONNX Runtime has no such kernel to compare with."""
    index, ends = np.uint8([5, 7]), np.float32([0, 1])
    values = [(index, False), (np.array(300), True), (ends, True)]
    model, feeds = node_model("OneHot", values, 18)
    (found,) = run(load_model(model), feeds)
    np.testing.assert_array_equal(found, np.eye(300, dtype=np.float32)[index])


@pytest.mark.parametrize("pads", [[0, 1, 0, 2], [-1, 1, 0, 2], [-1, 0, 0, -2]], ids=str)
def test_a_value_of_run_time_around_what_is_cropped(pads, rng):
    x, value = rng.random((5, 4), np.float32), np.array(3, np.float32)
    model, feeds = node_model("Pad", [(x, False), (integers(*pads), True), (value, False)], 18)
    check(model, feeds)
