"""A network of convolutions of all kinds."""

from __future__ import annotations

import numpy as np
import onnx

from support.onnx_models import model_of


def network():
    """Build pointwise, 3x3, depthwise, grouped and transposed convolutions, and a pool."""
    rng = np.random.default_rng(3)

    def weight(*shape):
        return (rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)

    shapes = [
        (6, 5, 1, 1), (10, 6, 3, 3), (10, 1, 3, 3), (6, 5, 3, 3), (6, 7, 2, 2), (9, 112),
        (5, 5, 3, 3),
    ]  # fmt: skip
    weights = {f"w{number}": weight(*shape) for number, shape in enumerate(shapes)}
    nodes = """
        z = Conv<pads = [1, 1, 1, 1]>(x, w6)
        a = Conv(z, w0)
        b = Conv<pads = [1, 1, 1, 1]>(a, w1)
        c = Conv<group = 10, pads = [1, 1, 1, 1]>(b, w2)
        d = Conv<group = 2, pads = [1, 1, 1, 1]>(c, w3)
        e = ConvTranspose<strides = [2, 2]>(d, w4)
        f = MaxPool<kernel_shape = [3, 3], strides = [3, 3]>(e)
        g = Flatten(f)
        y = Gemm<transB = 1>(g, w5)
    """
    model = model_of(nodes, {"x": (1, 5, 6, 6)}, {"y": (1, 9)}, weights, opset=18)
    onnx.checker.check_model(model)
    return model
