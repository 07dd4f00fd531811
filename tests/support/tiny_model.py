"""The ONNX model that the commands are tested with."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

from support.operators import build


def tiny_model(scale: float = 1.0) -> onnx.ModelProto:
    """``y = relu(conv(x) + z)`` and ``positive = conv(x) + z > 0``; the batch size is open."""
    generator = np.random.default_rng(5)
    kernel = scale * generator.standard_normal((4, 3, 3, 3)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x/in", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["c", "z"], ["s"]),
        helper.make_node("Relu", ["s"], ["y"]),
        helper.make_node("Greater", ["s", "zero"], ["positive"]),
    ]
    inputs = {"x/in": ("batch", 3, 8, 8), "z": (4, 1, 1)}
    constants = {"w": kernel, "zero": np.float32(0)}
    return build(nodes, inputs, ["y", "positive"], constants, element_type=None, name="tiny")
