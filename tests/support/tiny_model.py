"""The ONNX model that the commands are tested with."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def tiny_model(scale: float = 1.0) -> onnx.ModelProto:
    """``y = relu(conv(x) + z)`` and ``positive = conv(x) + z > 0``; the batch size is open."""
    generator = np.random.default_rng(5)
    kernel = scale * generator.standard_normal((4, 3, 3, 3)).astype(np.float32)
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x/in", "w"], ["c"], pads=[1, 1, 1, 1]),
            helper.make_node("Add", ["c", "z"], ["s"]),
            helper.make_node("Relu", ["s"], ["y"]),
            helper.make_node("Greater", ["s", "zero"], ["positive"]),
        ],
        "tiny",
        [
            value("x/in", TensorProto.FLOAT, ["batch", 3, 8, 8]),
            value("z", TensorProto.FLOAT, [4, 1, 1]),
        ],
        [
            value("y", TensorProto.FLOAT, ["batch", 4, 8, 8]),
            value("positive", TensorProto.BOOL, ["batch", 4, 8, 8]),
        ],
        [
            numpy_helper.from_array(kernel, "w"),
            numpy_helper.from_array(np.zeros((), np.float32), "zero"),
        ],
    )
    opset = helper.make_opsetid("", 17)
    return helper.make_model(graph, opset_imports=[opset], ir_version=8)
