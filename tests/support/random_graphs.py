"""Random small convolutional networks with awkward channels, as ONNX models."""

from __future__ import annotations

import numpy as np
import onnx

from support.networks import Graph

CHANNELS = (1, 3, 5, 7, 18, 30)
LARGEST = 12


class Drawer:
    """Draws a graph; the same seed draws the same graph."""

    def __init__(self, seed: int):
        self.rng = np.random.default_rng(seed)
        channels, height, width = self.pick(CHANNELS), *self.rng.integers(5, LARGEST + 1, 2)
        self.graph = Graph(1, int(channels), int(height), int(width), seed=seed)
        #: Extents of the pictures so far, by name; the next operator reads the last one.
        self.pictures = {"x": (int(channels), int(height), int(width))}

    def model(self, operators: int) -> onnx.ModelProto:
        name = self.convolution("x")
        for _ in range(operators):
            draw = self.pick(
                (self.convolution, self.convolution, self.depthwise, self.grouped, self.pool,
                 self.elementwise, self.residual, self.concat, self.resize, self.cut,
                 self.transposed, self.pad, self.gate, self.shuffle)
            )  # fmt: skip
            name = draw(name) or name
        return self.graph.model(self.convolution(name))

    # -- what is drawn: each returns the name of its result, or None where it does not apply ----

    def pick(self, options):
        return options[int(self.rng.integers(len(options)))]

    def note(self, name: str, channels: int, height: int, width: int) -> str:
        self.pictures[name] = (channels, height, width)
        return name

    def convolution(self, x: str, groups: int = 1, outputs: int | None = None) -> str:
        _, height, width = self.pictures[x]
        outputs = outputs or self.pick(CHANNELS)
        kernel = self.pick((1, 3, 3, 5))
        dilation = self.pick((1, 1, 2)) if kernel == 3 else 1
        edge = dilation * (kernel // 2)
        strides = [self.pick((1, 1, 2)) for _ in range(2)]
        name = self.graph.conv(
            x, outputs, kernel, groups=groups, strides=strides, pads=[edge] * 4,
            dilations=[dilation] * 2,
        )  # fmt: skip
        sizes = [-(-size // s) for size, s in zip((height, width), strides, strict=True)]
        name = self.note(name, outputs, *sizes)
        return self.elementwise(name) if self.rng.random() < 0.5 else name

    def depthwise(self, x: str) -> str:
        channels = self.pictures[x][0]
        return self.convolution(x, groups=channels, outputs=channels)

    def grouped(self, x: str) -> str | None:
        channels = self.pictures[x][0]
        divisors = [d for d in (2, 3, 5, 6, 7) if channels % d == 0]
        if not divisors:
            return None
        groups = self.pick(divisors)
        return self.convolution(x, groups=groups, outputs=groups * self.pick((1, 2, 3, 5)))

    def pool(self, x: str) -> str | None:
        channels, height, width = self.pictures[x]
        if min(height, width) < 4:
            return None
        operator = self.pick(("MaxPool", "AveragePool"))
        stride = self.pick((1, 2))
        name = self.graph.node(
            operator, [x], channels, kernel_shape=[3, 2], strides=[stride] * 2, pads=[1, 0, 1, 1]
        )
        return self.note(name, channels, (height - 1) // stride + 1, (width - 1) // stride + 1)

    def elementwise(self, x: str) -> str:
        g, extents = self.graph, self.pictures[x]
        channels = extents[0]
        operator = self.pick(("Relu", "LeakyRelu", "HardSwish", "Tanh", "Clip", "PRelu", "Mul"))
        inputs = [x]
        if operator == "Clip":
            inputs += [g.constant(np.float32(-0.3)), g.constant(np.float32(0.9))]
        elif operator == "PRelu":
            inputs.append(g.weights(channels, 1, 1))
        elif operator == "Mul":
            shape = self.pick(((), (1, channels, 1, 1), (1, 1, *extents[1:]), (extents[2],)))
            inputs.append(g.weights(*shape))
        return self.note(g.node(operator, inputs, channels), *extents)

    def residual(self, x: str) -> str | None:
        others = [n for n, e in self.pictures.items() if e == self.pictures[x] and n != x]
        if not others:
            return None
        operator = self.pick(("Add", "Sub", "Max"))
        name = self.graph.node(operator, [x, self.pick(others)], self.pictures[x][0])
        return self.note(name, *self.pictures[x])

    def concat(self, x: str) -> str:
        _, *sizes = self.pictures[x]
        others = [n for n, (_, *s) in self.pictures.items() if s == sizes]
        parts = [x, *(self.pick(others) for _ in range(self.pick((1, 2))))]
        channels = sum(self.pictures[p][0] for p in parts)
        return self.note(self.graph.node("Concat", parts, channels, axis=1), channels, *sizes)

    def resize(self, x: str) -> str | None:
        channels, height, width = self.pictures[x]
        if 2 * max(height, width) > 2 * LARGEST:
            return None
        mode = self.pick(("nearest", "linear", "cubic"))
        more = {"nearest_mode": "floor"} if mode == "nearest" else {}
        coordinates = "asymmetric" if mode == "nearest" else self.pick(("half_pixel", "asymmetric"))
        scales = self.graph.constant(np.array([1, 1, 2, 2], np.float32))
        name = self.graph.node(
            "Resize", [x, "", scales], channels, mode=mode,
            coordinate_transformation_mode=coordinates, **more,
        )  # fmt: skip
        return self.note(name, channels, 2 * height, 2 * width)

    def cut(self, x: str) -> str | None:
        extents = self.pictures[x]
        begins = [int(self.rng.integers(0, (e + 1) // 2)) for e in extents]
        ends = [int(self.rng.integers(b + 1, e + 1)) for b, e in zip(begins, extents, strict=True)]
        if min(ends[1] - begins[1], ends[2] - begins[2]) < 3:
            begins[1:], ends[1:] = [0, 0], list(extents[1:])
        arrays = [np.array(v, np.int64) for v in (begins, ends, [1, 2, 3])]
        name = self.graph.node(
            "Slice", [x, *(self.graph.constant(a) for a in arrays)], ends[0] - begins[0]
        )
        return self.note(name, *(e - b for b, e in zip(begins, ends, strict=True)))

    def transposed(self, x: str) -> str | None:
        channels, height, width = self.pictures[x]
        if max(height, width) > LARGEST // 2:
            return None
        outputs, kernel, stride = self.pick(CHANNELS), self.pick((2, 3, 4)), self.pick((1, 2))
        weight = self.graph.weights(channels, outputs, kernel, kernel)
        name = self.graph.node("ConvTranspose", [x, weight], outputs, strides=[stride] * 2)
        sizes = [(s - 1) * stride + kernel for s in (height, width)]
        return self.note(name, outputs, *sizes)

    def pad(self, x: str) -> str | None:
        channels, height, width = self.pictures[x]
        if min(height, width) < 3 or max(height, width) > LARGEST:
            return None
        mode = self.pick(("constant", "reflect", "edge"))
        pads = self.graph.constant(np.array([0, 0, 1, 2, 0, 0, 2, 0], np.int64))
        name = self.graph.node("Pad", [x, pads], channels, mode=mode)
        return self.note(name, channels, height + 3, width + 2)

    def gate(self, x: str) -> str:
        """Multiply the picture by a gate for each channel or each place."""
        g, (channels, height, width) = self.graph, self.pictures[x]
        if self.rng.random() < 0.5:
            pooled = g.node("GlobalAveragePool", [x], channels)
            gate = g.conv(pooled, channels)
        else:
            axes = g.constant(np.array([1], np.int64))
            gate = g.node("ReduceMean", [x, axes], 1, keepdims=1)
        gate = g.node("Sigmoid", [gate], g.channels[gate])
        return self.note(g.node("Mul", [x, gate], channels), channels, height, width)

    def shuffle(self, x: str) -> str | None:
        channels, height, width = self.pictures[x]
        divisors = [d for d in (2, 3, 5) if channels % d == 0 and channels > d]
        if not divisors:
            return None
        g, groups = self.graph, self.pick(divisors)
        split = g.constant(np.array([1, groups, channels // groups, height, width], np.int64))
        joined = g.constant(np.array([1, channels, height, width], np.int64))
        y = g.node("Transpose", [g.node("Reshape", [x, split], 0)], 0, perm=[0, 2, 1, 3, 4])
        return self.note(g.node("Reshape", [y, joined], channels), channels, height, width)


def draw(seed: int, operators: int) -> onnx.ModelProto:
    """Return the random graph of a seed."""
    return Drawer(seed).model(operators)
