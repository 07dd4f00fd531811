"""CRNN with random weights, which reads a line of text from a picture of it.

Shi, Bai, Yao 2015, "An End-to-End Trainable Neural Network for Image-based Sequence Recognition",
table 1: convolutions turn the picture into a sequence of columns, which two bidirectional LSTMs
read.  The last convolution spans 2×1 pixels, not 2×2, so that there is a step for every four
columns.
"""

from __future__ import annotations

from ._graph import GraphBuilder

#: Convolutions of 3×3: output channels, whether a BatchNormalization follows, and the next pool.
_LAYERS = (
    (64, False, (2, 2)), (128, False, (2, 2)), (256, True, None), (256, False, (2, 1)),
    (512, True, None), (512, False, (2, 1)),
)  # fmt: skip
#: Height of a picture in pixels, which the pools reduce to two.
_HEIGHT = 32


def crnn(
    *, width: float = 1.0, size: int = 256, classes: int = 37, batch: int = 1, seed: int = 0
) -> GraphBuilder:
    """CRNN: convolutions and two bidirectional LSTMs, for lines of text."""
    g = GraphBuilder("crnn", seed)
    channels, steps = 1, size // 4
    x = g.input("input", (batch, channels, _HEIGHT, size))
    for number, (base, norm, pool) in enumerate(_LAYERS):
        outputs = max(4, int(base * width))
        x = g.conv(x, f"conv{number}", (channels, outputs), 3, bias=not norm)
        x = g.batch_norm(x, f"norm{number}", outputs, 1e-5) if norm else x
        x = g.node("Relu", x, name=f"conv{number}/Relu")
        channels = outputs
        if pool is not None:
            name, window = f"pool{number}", list(pool)
            x = g.node("MaxPool", x, name=name, kernel_shape=window, strides=window)
    weight = g.he("columns.weight", (channels, channels, 2, 1), 2 * channels)
    x = g.node("Conv", x, weight, name="columns/Conv", kernel_shape=[2, 1])
    x = g.node("Relu", x, name="columns/Relu")
    x = g.node("Squeeze", x, g.constant("height", [2], int), name="columns/Squeeze")
    x = g.node("Transpose", x, name="columns/Transpose", perm=[2, 0, 1])
    hidden = max(4, int(256 * width))
    for number, outputs in enumerate((hidden, classes)):
        x = _lstm(g, x, f"lstm{number}", (steps, batch), (channels, hidden))
        x = _linear(g, x, f"linear{number}", (2 * hidden, outputs))
        channels = outputs
    g.node("Identity", x, result="output", name="output")
    g.output("output", (steps, batch, classes))
    return g


def _lstm(
    g: GraphBuilder, x: str, name: str, extents: tuple[int, int], channels: tuple[int, int]
) -> str:
    """Add a bidirectional LSTM, and concatenate the states of both directions."""
    inputs, hidden = channels
    x = g.node(
        "LSTM", x,
        g.normal(f"{name}.weight", (2, 4 * hidden, inputs), inputs**-0.5),
        g.normal(f"{name}.state", (2, 4 * hidden, hidden), hidden**-0.5),
        g.normal(f"{name}.bias", (2, 8 * hidden), 0.1),
        name=f"{name}/LSTM", direction="bidirectional", hidden_size=hidden,
    )  # fmt: skip
    x = g.node("Transpose", x, name=f"{name}/Transpose", perm=[0, 2, 1, 3])
    shape = g.constant(f"{name}.shape", [*extents, 2 * hidden], int)
    return g.node("Reshape", x, shape, name=f"{name}/Reshape")


def _linear(g: GraphBuilder, x: str, name: str, channels: tuple[int, int]) -> str:
    """Add a fully connected layer for each step."""
    weight = g.normal(f"{name}.weight", channels, channels[0] ** -0.5)
    x = g.node("MatMul", x, weight, name=f"{name}/MatMul")
    return g.node("Add", x, g.normal(f"{name}.bias", channels[1:], 0.1), name=f"{name}/Add")
