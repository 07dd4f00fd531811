"""Random networks of the operators that image networks use agree with ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from random_windows import Random
from reference import assert_right, graph_model, load_and_run, onnxruntime_results

OPSET = 20


class Network:
    """A network in the making; every method adds a block and returns its result.

    Values are pairs of a name and a shape (1, channels, height, width).
    """

    def __init__(self, r: Random):
        self.r = r
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, np.ndarray] = {}

    def node(self, op_type: str, *inputs: str, results: int = 1, **attributes: Any) -> list[str]:
        number = len(self.nodes)
        outputs = [f"v{number}_{k}" for k in range(results)]
        name = f"{op_type}_{number}"
        self.nodes.append(helper.make_node(op_type, inputs, outputs, name=name, **attributes))
        return outputs

    def constant(self, values: Any, dtype: str = "float32") -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(values).astype(dtype)
        return name

    def conv(self, x, channels=None, stride=1, kernel=3, groups=1):
        name, shape = x
        channels = channels or shape[1]
        fan_in = shape[1] // groups * kernel**2
        weight = self.r.normal(channels, shape[1] // groups, kernel, kernel) / np.sqrt(fan_in)
        pad = kernel // 2
        (y,) = self.node("Conv", name, self.constant(weight), group=groups, strides=[stride] * 2,
                         pads=[pad] * 4)  # fmt: skip
        size = tuple((e + 2 * pad - kernel) // stride + 1 for e in shape[2:])
        return y, (1, channels, *size)

    def norm(self, x):
        channels = x[1][1]
        values = [self.r.rng.uniform(0.5, 1.5, channels), *self.r.normal(2, channels) * 0.3]
        values.append(self.r.rng.uniform(0.5, 1.5, channels))
        (y,) = self.node("BatchNormalization", x[0], *(self.constant(v) for v in values))
        return y, x[1]

    def activation(self, x):
        kind = self.r.pick("Relu", "Clip", "Swish", "HardSwish", "LeakyRelu", "PRelu", "Gelu")
        name = x[0]
        if kind == "Clip":
            (y,) = self.node(kind, name, self.constant(0.0), self.constant(6.0))
        elif kind == "Swish":
            (gate,) = self.node("Sigmoid", name)
            (y,) = self.node("Mul", name, gate)
        elif kind == "PRelu":
            (y,) = self.node(kind, name, self.constant(self.r.normal(x[1][1], 1, 1)))
        else:
            (y,) = self.node(kind, name)
        return y, x[1]

    def residual(self, x):
        y = self.norm(self.conv(self.activation(self.norm(self.conv(x)))))
        (total,) = self.node("Add", x[0], y[0])
        return self.activation((total, x[1]))

    def branches(self, x):
        """Concatenate convolutions with different kernels and a pool (Inception, Fire)."""
        parts = [self.conv(x, self.r.integer(1, 4), kernel=k) for k in (1, 3)]
        (pooled,) = self.node("AveragePool", x[0], kernel_shape=[3, 3], pads=[1] * 4)
        parts.append((pooled, x[1]))
        (y,) = self.node("Concat", *(p[0] for p in parts), axis=1)
        return y, (1, sum(p[1][1] for p in parts), *x[1][2:])

    def squeeze_excite(self, x):
        channels = x[1][1]
        axes = self.constant([2, 3], "int64")
        (mean,) = self.node("ReduceMean", x[0], axes, keepdims=1)
        hidden = self.activation(self.conv((mean, (1, channels, 1, 1)), 2, kernel=1))
        (gate,) = self.node("HardSigmoid", self.conv(hidden, channels, kernel=1)[0])
        return self.node("Mul", x[0], gate)[0], x[1]

    def shuffle(self, x):
        """Interleave two halves of the channels (ShuffleNet)."""
        _, channels, height, width = x[1]
        if channels % 2:
            return x
        split = self.constant([1, 2, channels // 2, height, width], "int64")
        joined = self.constant([0, -1, height, width], "int64")
        (a,) = self.node("Reshape", x[0], split)
        (b,) = self.node("Transpose", a, perm=[0, 2, 1, 3, 4])
        return self.node("Reshape", b, joined)[0], x[1]

    def split(self, x):
        """Work on one part of the channels only (CSPNet)."""
        channels = x[1][1]
        if channels < 2:
            return x
        sizes = [channels // 2, channels - channels // 2]
        a, b = self.node("Split", x[0], self.constant(sizes, "int64"), results=2, axis=1)
        b = self.activation(self.conv((b, (1, sizes[1], *x[1][2:]))))[0]
        return self.node("Concat", b, a, axis=1)[0], x[1]

    def down(self, x):
        kind = self.r.pick("conv", "max", "focus")
        _, channels, height, width = x[1]
        if height % 2 or width % 2 or min(height, width) < 4:
            return x
        if kind == "conv":
            return self.conv(x, channels * 2, stride=2)
        if kind == "max":
            (y,) = self.node("MaxPool", x[0], kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
            return y, (1, channels, height // 2, width // 2)
        (y,) = self.node("SpaceToDepth", x[0], blocksize=2)
        return self.conv((y, (1, channels * 4, height // 2, width // 2)), channels)

    def up(self, x):
        kind = self.r.pick("nearest", "linear", "transposed", "depth")
        _, channels, height, width = x[1]
        if height > 16:
            return x
        shape = (1, channels, height * 2, width * 2)
        if kind == "transposed":
            weight = self.r.normal(channels, channels, 4, 4) / (2 * np.sqrt(channels))
            return self.node("ConvTranspose", x[0], self.constant(weight), strides=[2, 2],
                             pads=[1] * 4)[0], shape  # fmt: skip
        if kind == "depth":
            wide = self.conv(x, channels * 4, kernel=1)
            return self.node("DepthToSpace", wide[0], blocksize=2, mode="CRD")[0], shape
        scales = self.constant([1, 1, 2, 2])
        coordinate = "asymmetric" if kind == "nearest" else "half_pixel"
        return self.node("Resize", x[0], "", scales, mode=kind, nearest_mode="floor",
                         coordinate_transformation_mode=coordinate)[0], shape  # fmt: skip

    def depthwise(self, x):
        y = self.activation(self.norm(self.conv(x, groups=x[1][1])))
        return self.norm(self.conv(y, self.r.integer(2, 8), kernel=1))


BLOCKS = ("residual", "branches", "squeeze_excite", "shuffle", "split", "down", "up", "depthwise")


def check(seed: int) -> None:
    r = Random(seed)
    net = Network(r)
    shape = (1, r.integer(1, 4), 2 * r.integer(4, 8), 2 * r.integer(4, 8))
    x = net.activation(net.norm(net.conv(("x", shape), r.integer(2, 8))))
    for _ in range(6):
        x = getattr(net, r.pick(*BLOCKS))(x)
    (pooled,) = net.node("GlobalAveragePool", x[0])
    (flat,) = net.node("Flatten", pooled)
    weight = net.constant(r.normal(5, x[1][1]))
    (logits,) = net.node("Gemm", flat, weight, net.constant(r.normal(5)), transB=1)
    (scores,) = net.node("Softmax", logits, axis=-1)
    inputs = {"x": (shape, "float32")}
    model = graph_model(net.nodes, inputs, [logits, scores, x[0]], net.constants, OPSET)
    feeds = {"x": r.normal(*shape)}
    expected = onnxruntime_results(model, feeds)
    assert expected is not None, f"seed {seed}: no valid network"
    assert_right(load_and_run(model, feeds), expected)


@pytest.mark.optimised
@pytest.mark.onnxruntime
@pytest.mark.parametrize("seed", range(2))
def test_some(seed):
    check(seed)


@pytest.mark.slow
@pytest.mark.onnxruntime
@pytest.mark.parametrize("seed", range(100, 130))
def test_many(seed):
    check(seed)
