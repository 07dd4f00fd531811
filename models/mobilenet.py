"""MobileNetV1 and MobileNetV2 with random weights.

Howard et al. 2017, "MobileNets: efficient convolutional neural networks for mobile
vision applications", table 1; Sandler et al. 2018, "MobileNetV2: inverted residuals and
linear bottlenecks", table 2.  The graphs are as exporters write them, with unfused
BatchNormalization after every convolution and ReLU6 as Clip with constant limits.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import sqrt

from ._graph import GraphBuilder

#: Output channels and stride of each depthwise-separable block of MobileNetV1.
_V1_BLOCKS = (
    (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1),
    (512, 1), (512, 1), (512, 1), (512, 1), (1024, 2), (1024, 1),
)  # fmt: skip

#: Expansion factor, output channels, repeats and first stride of MobileNetV2's stages.
_V2_STAGES = (
    (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2),
    (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
)  # fmt: skip

_V1_EPSILON = 1e-3
_V2_EPSILON = 1e-5


def scaled_channels(channels: int, width: float) -> int:
    """Return the channels times the width multiplier, rounded to a multiple of 8.

    The result is at least 8, and at most a tenth below the exact product (the rule of
    MobileNetV2's reference implementation).
    """
    exact = channels * width
    rounded = max(8, int(exact + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * exact else rounded


def mobilenet_v1(
    *, width: float = 1.0, size: int = 224, classes: int = 1000, batch: int = 1, seed: int = 0
) -> GraphBuilder:
    """MobileNetV1: one convolution and 13 depthwise-separable blocks, with ReLU.

    Usual widths are 1.0, 0.75, 0.5 and 0.25.
    """
    g = GraphBuilder("mobilenet_v1", seed)
    *_, (x, channels) = v1_blocks(g, g.input("input", (batch, 3, size, size)), width)
    classifier(g, x, channels, batch, classes)
    return g


def v1_blocks(g: GraphBuilder, x: str, width: float) -> Iterator[tuple[str, int]]:
    """Add MobileNetV1's layers to ``x``; yield the result of each block, and its channels."""
    channels = _v1_channels(32, width)
    x = v1_layer(g, x, "stem", (3, channels), 3, stride=2)
    for number, (base, stride) in enumerate(_V1_BLOCKS):
        name, out = f"block{number}", _v1_channels(base, width)
        each = channels, channels
        x = v1_layer(g, x, f"{name}.depthwise", each, 3, stride=stride, groups=channels)
        x = v1_layer(g, x, f"{name}.pointwise", (channels, out), 1)
        channels = out
        yield x, channels


def v1_layer(
    g: GraphBuilder, x: str, name: str, channels: tuple[int, int], kernel: int, **options: int
) -> str:
    """Add a convolution with its normalization and rectifier."""
    x = g.conv(x, name, channels, kernel, **options)
    x = g.batch_norm(x, f"{name}.bn", channels[1], _V1_EPSILON)
    return g.node("Relu", x, name=f"{name}/Relu")


def _v1_channels(base: int, width: float) -> int:
    return max(8, int(base * width))


def mobilenet_v2(
    *, width: float = 1.0, size: int = 224, classes: int = 1000, batch: int = 1, seed: int = 0
) -> GraphBuilder:
    """MobileNetV2: inverted residual blocks with linear bottlenecks and ReLU6.

    Usual widths are 1.4, 1.0, 0.75, 0.5 and 0.35.
    """
    g = GraphBuilder("mobilenet_v2", seed)

    def block(x: str, name: str, channels: tuple[int, int], kernel: int, **options: int) -> str:
        x = g.conv(x, name, channels, kernel, **options)
        x = g.batch_norm(x, f"{name}.bn", channels[1], _V2_EPSILON)
        return x if options.get("linear") else g.relu6(x, name)

    channels = scaled_channels(32, width)
    x = g.input("input", (batch, 3, size, size))
    x = block(x, "stem", (3, channels), 3, stride=2)
    number = 0
    for expansion, base, repeats, first_stride in _V2_STAGES:
        out = scaled_channels(base, width)
        for repeat in range(repeats):
            name, stride = f"block{number}", first_stride if repeat == 0 else 1
            hidden, shortcut = channels * expansion, x
            if expansion != 1:
                x = block(x, f"{name}.expand", (channels, hidden), 1)
            x = block(x, f"{name}.depthwise", (hidden, hidden), 3, stride=stride, groups=hidden)
            x = block(x, f"{name}.project", (hidden, out), 1, linear=1)
            if stride == 1 and channels == out:
                x = g.node("Add", shortcut, x, name=f"{name}/Add")
            channels, number = out, number + 1
    last = scaled_channels(1280, max(1.0, width))
    x = block(x, "head", (channels, last), 1)
    classifier(g, x, last, batch, classes)
    return g


def classifier(g: GraphBuilder, x: str, channels: int, batch: int, classes: int) -> None:
    """Add an average over the image and a fully connected layer, which outputs logits."""
    x = g.node("GlobalAveragePool", x, name="pool/GlobalAveragePool")
    x = g.node("Flatten", x, name="pool/Flatten", axis=1)
    weight = g.normal("classifier.weight", (classes, channels), sqrt(2.0 / channels))
    bias = g.normal("classifier.bias", (classes,), 0.1)
    g.node("Gemm", x, weight, bias, name="classifier/Gemm", result="output", transB=1)
    g.output("output", (batch, classes))
