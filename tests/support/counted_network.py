"""A network whose counts are known."""

from __future__ import annotations

import onnx
from onnx import helper

from support.operators import build, random

CHANNELS, SIZE = 16, 14
#: Products and sums of both convolutions, 1×1 with stride 2, then 3×3.
CONVOLUTIONS = (2 * CHANNELS * 2 * CHANNELS * 49, 2 * 9 * (2 * CHANNELS) ** 2 * 49)


def small_network() -> onnx.ModelProto:
    """Two convolutions and an activation, whose channels fill all blocks, and a softmax."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], "first/Conv", strides=[2, 2]),
        helper.make_node("Relu", ["a"], ["b"], "first/Relu"),
        helper.make_node("Conv", ["b", "v"], ["c"], "second/Conv", pads=[1, 1, 1, 1]),
        helper.make_node("Sigmoid", ["c"], ["d"], "second/Sigmoid"),
        helper.make_node("ReduceMean", ["d"], ["e"], "mean", axes=[2, 3], keepdims=0),
        helper.make_node("Softmax", ["e"], ["y"], "probabilities", axis=-1),
    ]
    weights = {
        "w": random((2 * CHANNELS, CHANNELS, 1, 1), 0.3),
        "v": random((2 * CHANNELS, 2 * CHANNELS, 3, 3), 0.1),
    }
    return build(nodes, {"x": (1, CHANNELS, SIZE, SIZE)}, ["y"], weights, opset=13)
