"""Vision transformers with random weights: DeiT-Tiny and MobileViT-S.

Touvron et al. 2021, "Training data-efficient image transformers & distillation through
attention", table 1 (DeiT-Ti), and Mehta and Rastegari 2022, "MobileViT: light-weight,
general-purpose, and mobile-friendly vision transformer", table 4 (MobileViT-S), with the order of
layers of their reference implementations.  GELU and SiLU are written as exporters write them.
"""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt

from ._graph import GraphBuilder
from .mobilenet import classifier, scaled_channels

_EPSILON = 1e-6
_NORM_EPSILON = 1e-5

#: DeiT-Tiny: side of a patch in pixels, attention heads, channels of a head.
_PATCH, _HEADS, _HEAD_CHANNELS = 16, 3, 64

#: MobileViT-S: output channels, first stride and number of each stage's inverted residual blocks,
#: and channels and layers of the transformer that follows; ``None`` for no transformer.
_STAGES: tuple[tuple[int, int, int, tuple[int, int] | None], ...] = (
    (32, 1, 1, None), (64, 2, 3, None),
    (96, 2, 1, (144, 2)), (128, 2, 1, (192, 4)), (160, 2, 1, (240, 3)),
)  # fmt: skip
_MOBILE_HEADS = 4
_MOBILE_EXPANSION = 4
#: Side of a patch; each of its 2 × 2 pixels attends to the same pixel of the other patches.
_WINDOW = 2
#: Divisor of the image size: the last stage has a 32nd of its rows, in whole patches.
_MOBILE_STEP = 64


def deit_tiny(
    *,
    width: float = 1.0,
    depth: int = 12,
    size: int = 224,
    classes: int = 1000,
    batch: int = 1,
    seed: int = 0,
) -> GraphBuilder:
    """DeiT-Tiny: patches of 16×16 pixels and a class token through layers of global attention.

    Raises ``ValueError`` if ``size`` is not a multiple of 16.
    """
    if size % _PATCH:
        raise ValueError(f"DeiT-Tiny cuts its image into patches of {_PATCH}×{_PATCH} pixels: size "
                         f"must be a multiple of {_PATCH}, got {size}.")  # fmt: skip
    g = GraphBuilder("deit_tiny", seed)
    channels = _HEADS * max(4, int(_HEAD_CHANNELS * width))
    patches = (size // _PATCH) ** 2
    x = g.input("input", (batch, 3, size, size))
    fan_in = 3 * _PATCH**2
    weight = g.normal("patches.weight", (channels, 3, _PATCH, _PATCH), sqrt(1.0 / fan_in))
    x = g.node(
        "Conv", x, weight, g.normal("patches.bias", (channels,), 0.1), name="patches/Conv",
        dilations=[1, 1], group=1, kernel_shape=[_PATCH] * 2, pads=[0] * 4, strides=[_PATCH] * 2,
    )  # fmt: skip
    x = _reshape(g, x, "patches", (batch, channels, patches))
    x = g.node("Transpose", x, name="patches/Transpose", perm=[0, 2, 1])
    token = g.normal("token", (1, 1, channels), 1.0)
    if batch > 1:
        token = g.node("Expand", token, g.constant("token.shape", [batch, 1, channels], int))
    x = g.node("Concat", token, x, name="token/Concat", axis=1)
    places = g.normal("places", (1, patches + 1, channels), 0.5)
    x = g.node("Add", x, places, name="places/Add")
    for layer in range(depth):
        shape = (batch, patches + 1, channels)
        x = _attention(g, x, f"layer{layer}.attention", shape, _HEADS, _EPSILON)
        x = _perceptron(g, x, f"layer{layer}.mlp", (channels, 4 * channels), _gelu, _EPSILON)
    x = _layer_norm(g, x, "norm", channels, _EPSILON)
    x = g.node("Gather", x, g.constant("token.place", 0, int), name="token/Gather", axis=1)
    weight = g.normal("classifier.weight", (classes, channels), sqrt(1.0 / channels))
    bias = g.normal("classifier.bias", (classes,), 0.1)
    g.node("Gemm", x, weight, bias, name="classifier/Gemm", result="output", transB=1)
    g.output("output", (batch, classes))
    return g


def mobilevit(
    *, width: float = 1.0, size: int = 256, classes: int = 1000, batch: int = 1, seed: int = 0
) -> GraphBuilder:
    """MobileViT-S: inverted residual blocks, and attention among patches between convolutions.

    Raises ``ValueError`` if ``size`` is not a multiple of 64.
    """
    if size % _MOBILE_STEP:
        raise ValueError("MobileViT halves its image five times and cuts it into patches of 2×2: "
                         f"size must be a multiple of {_MOBILE_STEP}, got {size}.")  # fmt: skip
    g = GraphBuilder("mobilevit", seed)

    def layer(x: str, name: str, channels: tuple[int, int], kernel: int, **options: int) -> str:
        x = g.conv(x, name, channels, kernel, **options)
        x = g.batch_norm(x, f"{name}.bn", channels[1], _NORM_EPSILON)
        return x if options.get("linear") else _silu(g, x, name)

    channels, side = scaled_channels(16, width), size // 2
    x = g.input("input", (batch, 3, size, size))
    x = layer(x, "stem", (3, channels), 3, stride=2)
    for stage, (base, first_stride, blocks, transformer) in enumerate(_STAGES):
        out = scaled_channels(base, width)
        side //= first_stride
        for block in range(blocks):
            name, stride = f"stage{stage}.block{block}", first_stride if block == 0 else 1
            hidden, shortcut = _MOBILE_EXPANSION * channels, x
            x = layer(x, f"{name}.expand", (channels, hidden), 1)
            x = layer(x, f"{name}.depthwise", (hidden, hidden), 3, stride=stride, groups=hidden)
            x = layer(x, f"{name}.project", (hidden, out), 1, linear=1)
            if stride == 1 and channels == out:
                x = g.node("Add", shortcut, x, name=f"{name}/Add")
            channels = out
        if transformer is not None:
            inner, depth = scaled_channels(transformer[0], width), transformer[1]
            name, shortcut = f"stage{stage}.transformer", x
            x = layer(x, f"{name}.local", (channels, channels), 3)
            x = g.conv(x, f"{name}.enter", (channels, inner), 1, linear=True)
            x = _among_patches(g, x, name, (batch, inner, side), depth)
            x = layer(x, f"{name}.leave", (inner, channels), 1)
            x = g.node("Concat", shortcut, x, name=f"{name}/Concat", axis=1)
            x = layer(x, f"{name}.fusion", (2 * channels, channels), 3)
    last = 4 * channels
    x = layer(x, "head", (channels, last), 1)
    classifier(g, x, last, batch, classes)
    return g


def _among_patches(
    g: GraphBuilder, x: str, name: str, shape: tuple[int, int, int], depth: int
) -> str:
    """Add layers of attention among the patches of an image of (batch, channels, side)."""
    batch, channels, side = shape
    across = side // _WINDOW
    area, patches = _WINDOW**2, across**2
    rows = batch * channels * across
    # The axes are pixels of a patch, patches and channels: pixels become the batch.
    x = _reshape(g, x, f"{name}.rows", (rows, _WINDOW, across, _WINDOW))
    x = g.node("Transpose", x, name=f"{name}.rows/Transpose", perm=[0, 2, 1, 3])
    x = _reshape(g, x, f"{name}.patches", (batch, channels, patches, area))
    x = g.node("Transpose", x, name=f"{name}.patches/Transpose", perm=[0, 3, 2, 1])
    x = _reshape(g, x, f"{name}.sequence", (batch * area, patches, channels))
    for layer in range(depth):
        inside = f"{name}.layer{layer}"
        tokens = (batch * area, patches, channels)
        x = _attention(g, x, f"{inside}.attention", tokens, _MOBILE_HEADS, _NORM_EPSILON)
        x = _perceptron(g, x, f"{inside}.mlp", (channels, 2 * channels), _silu, _NORM_EPSILON)
    x = _layer_norm(g, x, f"{name}.norm", channels, _NORM_EPSILON)
    x = _reshape(g, x, f"{name}.back", (batch, area, patches, channels))
    x = g.node("Transpose", x, name=f"{name}.back/Transpose", perm=[0, 3, 2, 1])
    x = _reshape(g, x, f"{name}.folded", (rows, across, _WINDOW, _WINDOW))
    x = g.node("Transpose", x, name=f"{name}.folded/Transpose", perm=[0, 2, 1, 3])
    return _reshape(g, x, f"{name}.image", (batch, channels, side, side))


def _attention(
    g: GraphBuilder, x: str, name: str, shape: tuple[int, int, int], heads: int, epsilon: float
) -> str:
    """Add normalization, self-attention of (batch, tokens, channels), and the residual."""
    batch, tokens, channels = shape
    of_head = channels // heads
    y = _layer_norm(g, x, f"{name}.norm", channels, epsilon)
    y = _linear(g, y, f"{name}.qkv", (channels, 3 * channels))
    y = _reshape(g, y, f"{name}.heads", (batch, tokens, 3, heads, of_head))
    y = g.node("Transpose", y, name=f"{name}.heads/Transpose", perm=[2, 0, 3, 1, 4])
    query, key, value = (
        g.node(
            "Gather", y, g.constant(f"part{part}", part, int), name=f"{name}.{part}/Gather", axis=0
        )
        for part in range(3)
    )
    query = g.node("Mul", query, g.constant(f"scale{of_head}", of_head**-0.5), name=f"{name}/Mul")
    key = g.node("Transpose", key, name=f"{name}.key/Transpose", perm=[0, 1, 3, 2])
    scores = g.node("MatMul", query, key, name=f"{name}.scores/MatMul")
    scores = g.node("Softmax", scores, name=f"{name}/Softmax", axis=-1)
    y = g.node("MatMul", scores, value, name=f"{name}.values/MatMul")
    y = g.node("Transpose", y, name=f"{name}/Transpose", perm=[0, 2, 1, 3])
    y = _reshape(g, y, name, (batch, tokens, channels))
    y = _linear(g, y, f"{name}.projection", (channels, channels))
    return g.node("Add", x, y, name=f"{name}/Add")


def _perceptron(
    g: GraphBuilder,
    x: str,
    name: str,
    channels: tuple[int, int],
    activation: Callable[[GraphBuilder, str, str], str],
    epsilon: float,
) -> str:
    """Add normalization, two fully connected layers with an activation between, and a residual."""
    y = _layer_norm(g, x, f"{name}.norm", channels[0], epsilon)
    y = activation(g, _linear(g, y, f"{name}.expand", channels), name)
    y = _linear(g, y, f"{name}.project", (channels[1], channels[0]))
    return g.node("Add", x, y, name=f"{name}/Add")


def _linear(g: GraphBuilder, x: str, name: str, channels: tuple[int, int]) -> str:
    """Add a fully connected layer for each token, as a product and a bias."""
    x = g.node("MatMul", x, g.normal(f"{name}.weight", channels, sqrt(1.0 / channels[0])),
               name=f"{name}/MatMul")  # fmt: skip
    return g.node("Add", g.normal(f"{name}.bias", (channels[1],), 0.1), x, name=f"{name}/Add")


def _layer_norm(g: GraphBuilder, x: str, name: str, channels: int, epsilon: float) -> str:
    return g.node(
        "LayerNormalization", x,
        g.uniform(f"{name}.gamma", (channels,), 0.8, 1.2),
        g.normal(f"{name}.beta", (channels,), 0.1),
        name=f"{name}/LayerNormalization", axis=-1, epsilon=epsilon,
    )  # fmt: skip


def _gelu(g: GraphBuilder, x: str, name: str) -> str:
    """Add x · (1 + erf(x / √2)) / 2."""
    y = g.node("Div", x, g.constant("gelu.root", sqrt(2.0)), name=f"{name}.gelu/Div")
    y = g.node("Erf", y, name=f"{name}.gelu/Erf")
    y = g.node("Add", y, g.constant("gelu.one", 1.0), name=f"{name}.gelu/Add")
    y = g.node("Mul", x, y, name=f"{name}.gelu/Mul")
    return g.node("Mul", y, g.constant("gelu.half", 0.5), name=f"{name}.gelu.half/Mul")


def _silu(g: GraphBuilder, x: str, name: str) -> str:
    """Add x · sigmoid(x)."""
    y = g.node("Sigmoid", x, name=f"{name}/Sigmoid")
    return g.node("Mul", x, y, name=f"{name}.silu/Mul")


def _reshape(g: GraphBuilder, x: str, name: str, shape: tuple[int, ...]) -> str:
    return g.node("Reshape", x, g.constant(f"{name}.shape", shape, int), name=f"{name}/Reshape")
