"""A network of convolutions of all kinds."""

from __future__ import annotations

import numpy as np
from onnx import helper

from support.operators import build


def network():
    """Build pointwise, 3x3, depthwise, grouped and transposed convolutions, and a pool."""
    rng = np.random.default_rng(3)

    def weight(*shape):
        scale = 1 / np.sqrt(np.prod(shape[1:]))
        return (rng.standard_normal(shape) * scale).astype(np.float32)

    weights = {
        "w0": weight(6, 5, 1, 1), "w1": weight(10, 6, 3, 3), "w2": weight(10, 1, 3, 3),
        "w3": weight(6, 5, 3, 3), "w4": weight(6, 7, 2, 2), "w5": weight(9, 112),
        "w6": weight(5, 5, 3, 3),
    }  # fmt: skip
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
    return build(nodes, {"x": (1, 5, 6, 6)}, ["y"], weights, opset=18)
