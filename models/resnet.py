"""Residual networks with random weights.

He et al. 2016, "Deep residual learning for image recognition", table 1, with the stride of a
stage in its 3×3 convolution, as in most implementations ("version 1.5").
"""

from __future__ import annotations

from ._graph import GraphBuilder
from .mobilenet import classifier

#: Inner channels and first stride of each stage; blocks output four times the channels.
_STAGES = ((64, 1), (128, 2), (256, 2), (512, 2))
_EXPANSION = 4
_EPSILON = 1e-5


def resnet50(
    *, width: float = 1.0, size: int = 224, classes: int = 1000, batch: int = 1, seed: int = 0
) -> GraphBuilder:
    """ResNet-50: residual blocks of 1×1, 3×3 and 1×1 convolutions, with ReLU."""
    return residual_network(
        "resnet50", (3, 4, 6, 3), width=width, size=size, classes=classes, batch=batch, seed=seed
    )


def residual_network(
    name: str,
    blocks: tuple[int, int, int, int],
    *,
    width: float = 1.0,
    size: int = 224,
    classes: int = 1000,
    batch: int = 1,
    seed: int = 0,
) -> GraphBuilder:
    """Build a residual network like `resnet50`, with this number of blocks in each stage."""
    g = GraphBuilder(name, seed)

    def layer(
        x: str,
        name: str,
        channels: tuple[int, int],
        kernel: int,
        stride: int = 1,
        relu: bool = True,
    ) -> str:
        x = g.conv(x, name, channels, kernel, stride=stride, linear=not relu)
        x = g.batch_norm(x, f"{name}.bn", channels[1], _EPSILON)
        return g.node("Relu", x, name=f"{name}/Relu") if relu else x

    channels = max(8, int(64 * width))
    x = g.input("input", (batch, 3, size, size))
    x = layer(x, "stem", (3, channels), 7, 2)
    x = g.node(
        "MaxPool", x, name="stem/MaxPool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]
    )
    for stage, ((base, first_stride), repeats) in enumerate(zip(_STAGES, blocks, strict=True)):
        inner = max(8, int(base * width))
        out = inner * _EXPANSION
        for block in range(repeats):
            place, stride = f"stage{stage}.block{block}", first_stride if block == 0 else 1
            shortcut = x
            if block == 0:
                shortcut = layer(x, f"{place}.shortcut", (channels, out), 1, stride, relu=False)
            y = layer(x, f"{place}.reduce", (channels, inner), 1)
            y = layer(y, f"{place}.spatial", (inner, inner), 3, stride)
            y = layer(y, f"{place}.expand", (inner, out), 1, relu=False)
            x = g.node("Add", y, shortcut, name=f"{place}/Add")
            x = g.node("Relu", x, name=f"{place}/Relu")
            channels = out
    classifier(g, x, channels, batch, classes)
    return g
