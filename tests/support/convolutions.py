"""A network of convolutions of all kinds."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def network():
    """Build pointwise, 3x3, depthwise, grouped and transposed convolutions, and a pool."""
    rng = np.random.default_rng(3)

    def weight(name, *shape):
        scale = 1 / np.sqrt(np.prod(shape[1:]))
        values = (rng.standard_normal(shape) * scale).astype(np.float32)
        return numpy_helper.from_array(values, name)

    weights = [
        weight("w0", 6, 5, 1, 1), weight("w1", 10, 6, 3, 3), weight("w2", 10, 1, 3, 3),
        weight("w3", 6, 5, 3, 3), weight("w4", 6, 7, 2, 2), weight("w5", 9, 112),
        weight("w6", 5, 5, 3, 3),
    ]  # fmt: skip
    same = {"pads": [1, 1, 1, 1]}
    nodes = [
        helper.make_node("Conv", ["x", "w6"], ["z"], **same),
        helper.make_node("Conv", ["z", "w0"], ["a"]),
        helper.make_node("Conv", ["a", "w1"], ["b"], **same),
        helper.make_node("Conv", ["b", "w2"], ["c"], group=10, **same),
        helper.make_node("Conv", ["c", "w3"], ["d"], group=2, **same),
        helper.make_node("ConvTranspose", ["d", "w4"], ["e"], strides=[2, 2]),
        helper.make_node("MaxPool", ["e"], ["f"], kernel_shape=[3, 3], strides=[3, 3]),
        helper.make_node("Flatten", ["f"], ["g"]),
        helper.make_node("Gemm", ["g", "w5"], ["y"], transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "knobs",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 5, 6, 6))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 9))],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(model)
    return model
