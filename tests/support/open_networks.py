"""Small networks with open shapes, and ONNX Runtime's results for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnxruntime

from support.networks import Graph


def with_open_extents(model: onnx.ModelProto, *symbols: str | None) -> onnx.ModelProto:
    """Return a model whose input has these symbols, and its own extent for each ``None``."""
    dims = model.graph.input[0].type.tensor_type.shape.dim
    for dim, symbol in zip(dims, symbols, strict=True):
        if symbol is not None:
            dim.dim_param = symbol
    del model.graph.value_info[:]
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    return model


def classifier(channels: int = 7) -> onnx.ModelProto:
    """Return convolutions, a residual, and a dense layer after a mean: any batch, any image."""
    g = Graph(1, 3, 12, 12)
    x = g.relu(g.conv("x", channels, 3))
    y = g.conv(g.relu(g.conv(x, channels, 3, groups=channels)), channels)
    x = g.relu(g.node("Add", [x, y], channels))
    x = g.node("GlobalAveragePool", [x], channels)
    x = g.node("Flatten", [x], channels)
    model = g.model(g.node("Gemm", [x, g.weights(channels, 5)], 5))
    return with_open_extents(model, "N", None, "H", "W")


def mixing() -> onnx.ModelProto:
    """Return a network whose samples are not independent: a softmax over the batch."""
    g = Graph(2, 3, 4, 4)
    x = g.relu(g.conv("x", 5, 3))
    g.nodes[-1].name = "act"
    model = g.model(g.node("Softmax", [x], 5, axis=0))
    model.graph.node[-1].name = "over_samples"
    return with_open_extents(model, "N", None, None, None)


def reference(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Return ONNX Runtime's results."""
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return list(session.run(None, dict(feeds)))


def values(shape: Sequence[int], seed: int = 0) -> np.ndarray:
    """Return normally distributed numbers."""
    return np.random.default_rng(seed).standard_normal(shape, np.float32)
