"""Small networks of kinds that are deployed in 8 bits, quantized by ONNX Runtime's tool."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import onnx
from onnxruntime import quantization
from onnxruntime.quantization.shape_inference import quant_pre_process

from tvmflow.models import make
from tvmflow.models._graph import GraphBuilder


class _Network(GraphBuilder):
    """Builder of convolutions with normalisation and an activation, over one picture."""

    def __init__(self, name: str, size: int):
        super().__init__(name, 0)
        self.now, self.channels = self.input("input", (1, 3, size, size)), 3

    def layer(self, channels: int, kernel: int, activation: str = "", **options) -> str:
        """Add a convolution, a normalisation and an activation; return the result's name."""
        name = f"layer{len(self.weights)}"
        x = self.conv(self.now, name, (self.channels, channels), kernel, **options)
        x = self.batch_norm(x, f"{name}.bn", channels, 1e-5)
        if activation == "Clip":
            x = self.relu6(x, name)
        elif activation:
            x = self.node(activation, x, name=f"{name}/{activation}")
        self.now, self.channels = x, channels
        return x

    def add(self, shortcut: str) -> None:
        self.now = self.node("Add", self.now, shortcut)

    def inverted(self, outputs: int, expansion: int, kernel: int, stride: int, activation: str,
                 squeezed: bool = False) -> None:  # fmt: skip
        """Add an inverted residual block, with squeeze and excitation if ``squeezed``."""
        shortcut, inputs = self.now, self.channels
        wide = inputs * expansion
        if expansion > 1:
            self.layer(wide, 1, activation)
        self.layer(wide, kernel, activation, groups=wide, stride=stride)
        if squeezed:
            self.squeeze(wide)
        self.layer(outputs, 1, linear=True)
        if stride == 1 and inputs == outputs:
            self.add(shortcut)

    def squeeze(self, wide: int) -> None:
        """Scale channels by gates computed from their means (squeeze and excitation)."""
        x, name = self.now, f"squeeze{len(self.weights)}"
        mean = self.node("GlobalAveragePool", x)
        less = self.conv(mean, f"{name}.reduce", (wide, wide // 4), 1, bias=True)
        less = self.node("Relu", less)
        more = self.conv(less, f"{name}.expand", (wide // 4, wide), 1, bias=True)
        self.now = self.node("Mul", x, self.node("HardSigmoid", more, alpha=1 / 6, beta=0.5))

    def classify(self, classes: int) -> onnx.ModelProto:
        x = self.node("Flatten", self.node("GlobalAveragePool", self.now), axis=1)
        weight = self.normal("fc.weight", (classes, self.channels), self.channels**-0.5)
        bias = self.normal("fc.bias", (classes,), 0.1)
        self.node("Gemm", x, weight, bias, result="output", transB=1)
        self.output("output", (1, classes))
        return self.model()


def resnet18() -> onnx.ModelProto:
    """Return ResNet-18 with an eighth of its channels."""
    g = _Network("resnet18", 48)
    g.layer(12, 7, "Relu", stride=2)
    g.now = g.node("MaxPool", g.now, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    for channels, first in ((12, 1), (20, 2), (36, 2), (64, 2)):
        for stride in (first, 1):
            entry, inputs = g.now, g.channels
            shortcut = entry
            if stride != 1 or inputs != channels:
                shortcut = g.layer(channels, 1, stride=stride)
                g.now, g.channels = entry, inputs
            g.layer(channels, 3, "Relu", stride=stride)
            g.layer(channels, 3)
            g.add(shortcut)
            g.now = g.node("Relu", g.now)
    return g.classify(37)


def efficientnet_lite0() -> onnx.ModelProto:
    """Return blocks of EfficientNet-Lite0, each once or twice, with a quarter of the channels."""
    g = _Network("efficientnet_lite0", 48)
    g.layer(8, 3, "Clip", stride=2)
    for expansion, channels, kernel, stride, count in (
        (1, 4, 3, 1, 1), (6, 6, 3, 2, 2), (6, 10, 5, 2, 2), (6, 20, 3, 2, 2), (6, 28, 5, 1, 1),
    ):  # fmt: skip
        for index in range(count):
            g.inverted(channels, expansion, kernel, stride if index == 0 else 1, "Clip")
    g.layer(80, 1, "Clip")
    return g.classify(37)


def mobilenet_v3() -> onnx.ModelProto:
    """Return blocks of MobileNetV3-Small: hard swish, squeeze and excitation."""
    g = _Network("mobilenet_v3", 48)
    g.layer(8, 3, "HardSwish", stride=2)
    for channels, expansion, kernel, stride, activation, squeezed in (
        (8, 1, 3, 2, "Relu", True), (12, 4, 3, 2, "Relu", False), (12, 3, 3, 1, "Relu", False),
        (20, 4, 5, 2, "HardSwish", True), (20, 6, 5, 1, "HardSwish", True),
    ):  # fmt: skip
        g.inverted(channels, expansion, kernel, stride, activation, squeezed)
    g.layer(72, 1, "HardSwish")
    return g.classify(37)


def face_detector() -> onnx.ModelProto:
    """Return a detector like BlazeFace: two heads of boxes and scores, each for 4 anchors."""
    g = _Network("face_detector", 64)
    g.layer(12, 5, "Relu", stride=2)
    for channels, stride in ((14, 1), (18, 2), (18, 1), (26, 2)):
        g.inverted(channels, 1, 3, stride, "Relu")
    boxes, scores, places = [], [], 0
    for anchors, size in ((2, 8), (6, 4)):
        if size == 4:
            g.inverted(36, 1, 3, 2, "Relu")
        for results, width, name in ((boxes, 4, "boxes"), (scores, 1, "scores")):
            head = g.conv(g.now, f"{name}{size}", (g.channels, anchors * width), 3, bias=True)
            head = g.node("Transpose", head, perm=[0, 2, 3, 1])
            shape = g.constant(f"{name}{size}.shape", [1, -1, width], int)
            results.append(g.node("Reshape", head, shape))
        places += anchors * size * size
    g.node("Concat", *boxes, axis=1, result="boxes")
    g.node("Sigmoid", g.node("Concat", *scores, axis=1), result="scores")
    g.output("boxes", (1, places, 4))
    g.output("scores", (1, places, 1))
    return g.model()


#: Networks by name.
NETWORKS = {
    "resnet18": resnet18,
    "mobilenet_v2": lambda: make("mobilenet_v2", width=0.35, size=48, classes=37),
    "squeezenet": lambda: make("squeezenet", width=0.25, size=48, classes=37),
    "efficientnet_lite0": efficientnet_lite0,
    "mobilenet_v3": mobilenet_v3,
    "face_detector": face_detector,
}
FORMS = ("QOperator", "QDQ")


class _Calibration(quantization.CalibrationDataReader):
    def __init__(self, name: str, shape: list[int]):
        rng = np.random.default_rng(1)
        self.feeds = [{name: rng.standard_normal(shape).astype(np.float32)} for _ in range(2)]

    def get_next(self):
        return self.feeds.pop() if self.feeds else None


def shape_of(model: onnx.ModelProto) -> list[int]:
    """Return the shape of the first input."""
    return [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]


@cache
def quantized(name: str, form: str, activations: str = "QUInt8") -> onnx.ModelProto:
    """Return a network of :data:`NETWORKS`, quantized in one of :data:`FORMS`, per channel."""
    model = NETWORKS[name]()
    with tempfile.TemporaryDirectory() as folder:
        paths = [str(Path(folder, part)) for part in ("model.onnx", "fp32.onnx", "int8.onnx")]
        onnx.save(model, paths[0])
        quant_pre_process(*paths[:2], skip_symbolic_shape=True)
        quantization.quantize_static(
            *paths[1:],
            _Calibration(model.graph.input[0].name, shape_of(model)),
            quant_format=quantization.QuantFormat[form],
            per_channel=True,
            activation_type=quantization.QuantType[activations],
            weight_type=quantization.QuantType.QInt8,
        )
        return onnx.load(paths[2])


def picture(model: onnx.ModelProto, seed: int = 2) -> dict[str, np.ndarray]:
    """Return a random input."""
    value = model.graph.input[0]
    x = np.random.default_rng(seed).standard_normal(shape_of(model))
    return {value.name: x.astype(np.float32)}
