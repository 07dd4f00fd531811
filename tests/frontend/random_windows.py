"""Random convolutions and pools, with any strides, dilations, groups, padding, operator set."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from reference import Value

Case = tuple[str, list[Value], dict[str, Any], int]


class Random:
    """Random choices for test cases."""

    def __init__(self, seed: int):
        self.rng = np.random.default_rng(seed)

    def integer(self, low: int, high: int) -> int:
        """Return an integer from low to high, both included."""
        return int(self.rng.integers(low, high + 1))

    def integers(self, low: int, high: int, count: int) -> list[int]:
        return [self.integer(low, high) for _ in range(count)]

    def pick(self, *choices: Any) -> Any:
        return choices[self.integer(0, len(choices) - 1)]

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def normal(self, *shape: int, dtype: str = "float32", scale: float = 1.0) -> np.ndarray:
        """Return normally distributed values, with a larger deviation for integers."""
        values = self.rng.standard_normal(shape) * scale
        kind = np.dtype(dtype).kind
        if kind == "u":
            return np.asarray(np.abs(values) * 9).astype(dtype)
        return np.asarray(values * 9 if kind == "i" else values).astype(dtype)

    def shape(self, rank: int | None = None, low: int = 1, high: int = 5) -> list[int]:
        return self.integers(low, high, self.integer(1, 4) if rank is None else rank)


def conv(r: Random) -> Case:
    rank, groups = r.pick(1, 2, 2, 2, 3), r.pick(1, 1, 2, 3)
    inputs, outputs = groups * r.integer(1, 3), groups * r.integer(1, 3)
    kernel, sizes = r.integers(1, 4, rank), r.integers(6, 12, rank)
    attributes = windows(r, rank, kernel, groups)
    padding = r.pick("pads", "SAME_UPPER", "SAME_LOWER", "VALID", "none")
    if padding == "pads":
        attributes["pads"] = r.integers(0, 3, 2 * rank)
    elif padding != "none":
        attributes["auto_pad"] = padding
    values = [
        (r.normal(r.integer(1, 2), inputs, *sizes), False),
        (r.normal(outputs, inputs // groups, *kernel), r.chance(0.7)),
    ]
    if r.chance(0.5):
        values.append((r.normal(outputs), r.chance(0.7)))
    return "Conv", values, attributes, r.pick(7, 11, 22)


def conv_transpose(r: Random) -> Case:
    rank, groups = r.pick(1, 2, 2, 2, 3), r.pick(1, 1, 2, 3)
    inputs, outputs = groups * r.integer(1, 3), r.integer(1, 3)
    kernel, sizes = r.integers(1, 4, rank), r.integers(6, 12, rank)
    attributes = windows(r, rank, kernel, groups)
    strides, dilations = attributes["strides"], attributes["dilations"]
    padding = r.pick("pads", "SAME_UPPER", "SAME_LOWER", "VALID", "none", "shape", "extra")
    if padding == "pads":
        attributes["pads"] = r.integers(0, 3, 2 * rank)
    elif padding == "shape":
        attributes["output_shape"] = [
            max(1, (sizes[a] - 1) * strides[a] + (kernel[a] - 1) * dilations[a] + r.integer(-2, 3))
            for a in range(rank)
        ]
        if r.chance(0.5):
            attributes["auto_pad"] = r.pick("SAME_UPPER", "SAME_LOWER")
    elif padding == "extra":
        limits = [max(s, d) - 1 for s, d in zip(strides, dilations, strict=True)]
        attributes["output_padding"] = [r.integer(0, limit) for limit in limits]
        attributes["pads"] = r.integers(0, 2, 2 * rank)
    elif padding != "none":
        attributes["auto_pad"] = padding
    values = [
        (r.normal(r.integer(1, 2), inputs, *sizes), False),
        (r.normal(inputs, outputs, *kernel), r.chance(0.7)),
    ]
    if r.chance(0.5):
        values.append((r.normal(outputs * groups), r.chance(0.7)))
    return "ConvTranspose", values, attributes, r.pick(7, 11, 22)


def windows(r: Random, rank: int, kernel: list[int], groups: int) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "group": groups, "strides": r.integers(1, 3, rank), "dilations": r.integers(1, 3, rank),
    }  # fmt: skip
    if r.chance(0.5):
        attributes["kernel_shape"] = kernel
    return attributes


def pool(op_type: str) -> Callable[[Random], Case]:
    #: First operator sets with dilations and ceil_mode.
    dilations_since = {"MaxPool": 10, "AveragePool": 19, "LpPool": 18}[op_type]
    ceil_since = {"MaxPool": 10, "AveragePool": 10, "LpPool": 18}[op_type]

    def case(r: Random) -> Case:
        rank = r.pick(1, 2, 2, 2, 3)
        kernel = r.integers(1, 4, rank)
        opset = r.pick(11, 18, 22) if op_type == "LpPool" else r.pick(7, 10, 12, 19, 22)
        attributes: dict[str, Any] = {"kernel_shape": kernel, "strides": r.integers(1, 3, rank)}
        if op_type == "LpPool":
            attributes["p"] = r.integer(1, 4)
        if op_type == "AveragePool" and r.chance(0.5):
            attributes["count_include_pad"] = 1
        if opset >= dilations_since and r.chance(0.5):
            attributes["dilations"] = r.integers(1, 3, rank)
        if opset >= ceil_since and r.chance(0.5):
            attributes["ceil_mode"] = 1
        padding = r.pick("pads", "pads", "SAME_UPPER", "SAME_LOWER", "VALID", "none")
        if padding == "pads":
            attributes["pads"] = [r.integer(0, k - 1) for k in kernel * 2]
        elif padding != "none":
            attributes["auto_pad"] = padding
        shape = (r.integer(1, 2), r.integer(1, 3), *r.integers(5, 12, rank))
        return op_type, [(r.normal(*shape), False)], attributes, opset

    return case


WINDOWS: dict[str, Callable[[Random], Case]] = {
    "Conv": conv,
    "ConvTranspose": conv_transpose,
    "MaxPool": pool("MaxPool"),
    "AveragePool": pool("AveragePool"),
    "LpPool": pool("LpPool"),
}
