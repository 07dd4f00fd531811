"""SqueezeNet 1.1 with random weights.

Iandola et al. 2016, "SqueezeNet: AlexNet-level accuracy with 50x fewer parameters and <0.5MB
model size", figure 2, as version 1.1 of the authors' repository: pools come earlier and the
first convolution is smaller, for 2.4 times less arithmetic.
"""

from __future__ import annotations

from ._graph import GraphBuilder

#: Channels of a fire module's squeeze layer and of each of its two expansions; ``None`` is a pool.
_MODULES = (
    None, (16, 64), (16, 64),
    None, (32, 128), (32, 128),
    None, (48, 192), (48, 192), (64, 256), (64, 256),
)  # fmt: skip


def squeezenet(
    *, width: float = 1.0, size: int = 224, classes: int = 1000, batch: int = 1, seed: int = 0
) -> GraphBuilder:
    """SqueezeNet 1.1: fire modules, whose two expansions are concatenated."""
    g = GraphBuilder("squeezenet", seed)

    def conv(x: str, name: str, channels: tuple[int, int], kernel: int, stride: int = 1) -> str:
        x = g.conv(x, name, channels, kernel, stride=stride, bias=True)
        return g.node("Relu", x, name=f"{name}/Relu")

    def channels_of(base: int) -> int:
        return max(4, int(base * width))

    channels = channels_of(64)
    x = g.input("input", (batch, 3, size, size))
    x = conv(x, "stem", (3, channels), 3, 2)
    for number, module in enumerate(_MODULES):
        if module is None:
            x = g.node(
                "MaxPool", x, name=f"pool{number}", kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1
            )
            continue
        squeeze, expand = (channels_of(base) for base in module)
        name = f"fire{number}"
        x = conv(x, f"{name}.squeeze", (channels, squeeze), 1)
        wide = conv(x, f"{name}.expand1x1", (squeeze, expand), 1)
        tall = conv(x, f"{name}.expand3x3", (squeeze, expand), 3)
        x = g.node("Concat", wide, tall, name=f"{name}/Concat", axis=1)
        channels = 2 * expand
    x = conv(x, "classifier", (channels, classes), 1)
    x = g.node("GlobalAveragePool", x, name="pool/GlobalAveragePool")
    g.node("Flatten", x, name="pool/Flatten", result="output", axis=1)
    g.output("output", (batch, classes))
    return g
