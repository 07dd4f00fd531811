"""Small convolutional networks with the traps of the texture pipeline, as ONNX models."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


class Graph:
    """Builder of a model node by node; every method returns the name of a new tensor."""

    def __init__(self, *shape: int, seed: int = 0):
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.shape = shape
        self.channels = {"x": shape[1]}

    def node(self, operator: str, inputs: list[str], channels: int, **attributes: object) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [name], **attributes))
        self.channels[name] = channels
        return name

    def constant(self, array: np.ndarray) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def weights(self, *shape: int) -> str:
        scale = np.sqrt(2.0 / max(1, int(np.prod(shape[1:]))))
        return self.constant((self.rng.standard_normal(shape) * scale).astype(np.float32))

    def conv(
        self,
        x: str,
        outputs: int,
        kernel: int = 1,
        stride: int = 1,
        groups: int = 1,
        **more: object,
    ) -> str:
        """Add a convolution with 'same' padding and a bias."""
        weight = self.weights(outputs, self.channels[x] // groups, kernel, kernel)
        bias = self.weights(outputs)
        edge = kernel // 2
        attributes = {"strides": [stride] * 2, "pads": [edge] * 4, "group": groups, **more}
        return self.node("Conv", [x, weight, bias], outputs, **attributes)

    def relu(self, x: str) -> str:
        return self.node("Relu", [x], self.channels[x])

    def model(self, output: str, opset: int = 18) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes,
            "network",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, self.shape)],
            [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)],
            self.constants,
        )
        opsets = [helper.make_opsetid("", opset)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
        model = onnx.shape_inference.infer_shapes(model)
        onnx.checker.check_model(model)
        return model


def fire(squeeze: int = 3, expand: tuple[int, int] = (3, 5)) -> onnx.ModelProto:
    """Return SqueezeNet's fire modules; channels that do not fill a texel are concatenated."""
    g = Graph(1, 3, 19, 19)
    x = g.relu(g.conv("x", 7, 3, stride=2))
    for _ in range(2):
        s = g.relu(g.conv(x, squeeze))
        parts = [g.relu(g.conv(s, expand[0])), g.relu(g.conv(s, expand[1], 3))]
        x = g.node("Concat", parts, sum(expand), axis=1)
    x = g.node("MaxPool", [x], g.channels[x], kernel_shape=[3, 3], strides=[2, 2])
    x = g.conv(x, 18)
    return g.model(g.node("GlobalAveragePool", [x], 18))


def bottlenecks() -> onnx.ModelProto:
    """Return ResNet bottlenecks with a stride, a projection and an identity shortcut."""
    g = Graph(1, 3, 16, 16)
    x = g.relu(g.conv("x", 10, 3))
    for stride in (2, 1):
        y = g.relu(g.conv(x, 6))
        y = g.conv(g.relu(g.conv(y, 6, 3, stride=stride)), 14)
        shortcut = x if stride == 1 else g.conv(x, 14, stride=2)
        x = g.relu(g.node("Add", [y, shortcut], 14))
    return g.model(x)


def channel_shuffle(groups: int = 3) -> onnx.ModelProto:
    """Return ShuffleNet blocks: grouped convolutions with channels shuffled between them."""
    channels = 4 * groups
    g = Graph(1, 3, 8, 8)
    x = g.relu(g.conv("x", channels, 3))
    y = g.relu(g.conv(x, channels, groups=groups))
    split = g.constant(np.array([1, groups, channels // groups, 8, 8], np.int64))
    joined = g.constant(np.array([1, channels, 8, 8], np.int64))
    y = g.node("Reshape", [y, split], channels)
    y = g.node("Transpose", [y], channels, perm=[0, 2, 1, 3, 4])
    y = g.node("Reshape", [y, joined], channels)
    y = g.conv(y, channels, 3, groups=channels)
    y = g.conv(y, channels, groups=groups)
    return g.model(g.relu(g.node("Add", [x, y], channels)))


def inception() -> onnx.ModelProto:
    """Return branches of several kernels and a pool, concatenated; then an uneven split."""
    g = Graph(1, 5, 9, 9)
    x = g.relu(g.conv("x", 9))
    pooled = g.node("AveragePool", [x], 9, kernel_shape=[3, 3], pads=[1] * 4, count_include_pad=1)
    branches = [g.conv(x, 3), g.conv(x, 6, 3), g.conv(g.conv(x, 2), 5, 5), g.conv(pooled, 1)]
    y = g.node("Concat", branches, 15, axis=1)
    sizes = g.constant(np.array([6, 9], np.int64))
    g.nodes.append(helper.make_node("Split", [y, sizes], ["left", "right"], axis=1))
    g.channels.update(left=6, right=9)
    return g.model(g.node("Mul", [g.conv("left", 9, 3), "right"], 9))


def squeeze_and_excite() -> onnx.ModelProto:
    """Return a network with gates of channels, computed from the means of their pictures."""
    g = Graph(1, 3, 10, 10)
    x = g.relu(g.conv("x", 13, 3))
    s = g.node("GlobalAveragePool", [x], 13)
    s = g.node("HardSigmoid", [g.conv(g.relu(g.conv(s, 3)), 13)], 13)
    return g.model(g.conv(g.node("Mul", [x, s], 13), 7))


def u_net() -> onnx.ModelProto:
    """Return a network that downsamples, resizes, and has a skip connection of other channels."""
    g = Graph(1, 1, 12, 12)
    x = g.relu(g.conv("x", 6, 3))
    down = g.node("MaxPool", [x], 6, kernel_shape=[2, 2], strides=[2, 2])
    down = g.relu(g.conv(down, 11, 3))
    scales = g.constant(np.array([1, 1, 2, 2], np.float32))
    up = g.node(
        "Resize",
        [down, "", scales],
        11,
        mode="nearest",
        nearest_mode="floor",
        coordinate_transformation_mode="asymmetric",
    )
    y = g.node("Concat", [up, x], 17, axis=1)
    return g.model(g.conv(g.relu(g.conv(y, 6, 3)), 2))


def transposed() -> onnx.ModelProto:
    """Return a transposed convolution with a stride, between others."""
    g = Graph(1, 3, 6, 6)
    x = g.relu(g.conv("x", 6, 3))
    weight = g.weights(6, 5, 3, 3)
    y = g.node("ConvTranspose", [x, weight], 5, strides=[2, 2], pads=[1] * 4, output_padding=[1, 1])
    return g.model(g.conv(g.relu(y), 4, 3))


def dilated() -> onnx.ModelProto:
    """Return dilated and padded convolutions, and other kinds of padding."""
    g = Graph(1, 3, 11, 11)
    x = g.relu(g.conv("x", 6, 3))
    x = g.conv(x, 6, 3, dilations=[2, 2], pads=[2, 2, 2, 2])
    pads = g.constant(np.array([0, 0, 1, 2, 0, 0, 2, 1], np.int64))
    x = g.node("Pad", [x, pads], 6, mode="reflect")
    return g.model(g.conv(x, 3, 3))


def channel_reductions(operator: str) -> onnx.ModelProto:
    """Return a reduction across channels whose last texel is not full."""
    g = Graph(1, 3, 5, 5)
    x = g.conv("x", 7, 3)
    if operator == "Softmax":
        return g.model(g.node("Softmax", [x], 7, axis=1))
    if operator == "ArgMax":
        y = g.node("Cast", [g.node("ArgMax", [x], 1, axis=1)], 1, to=TensorProto.FLOAT)
        return g.model(y)
    if operator == "Flatten":
        x = g.node("Flatten", [x], 175)
        return g.model(g.node("Gemm", [x, g.weights(175, 10)], 10))
    return g.model(g.node(operator, [x, g.constant(np.array([1], np.int64))], 1, keepdims=1))


NETWORKS: dict[str, Callable[[], onnx.ModelProto]] = {
    "fire": fire,
    "bottlenecks": bottlenecks,
    "channel_shuffle": channel_shuffle,
    "inception": inception,
    "squeeze_and_excite": squeeze_and_excite,
    "u_net": u_net,
    "transposed": transposed,
    "dilated": dilated,
    **{
        f"channels_{name}": lambda name=name: channel_reductions(name)
        for name in ("Softmax", "ReduceMean", "ReduceSum", "ReduceMax", "ArgMax", "Flatten")
    },
}
