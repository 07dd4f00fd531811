"""Networks of operators that move elements: on plain tensors, and between convolutions."""

from __future__ import annotations

from functools import cache

import numpy as np
from onnx import helper

from support.operators import build, random


def ints(*values):
    return np.array(values, np.int64)


class Outputs:
    """A model with an output for each operator."""

    def __init__(self, **inputs):
        self.inputs, self.nodes, self.constants = inputs, [], {}
        self.outputs = []

    def constant(self, array):
        name = f"k{len(self.constants)}"
        self.constants[name] = array
        return name

    def node(self, operator, *operands, to=None, **attributes):
        """Add a node; arrays among its operands become constants."""
        names = [o if isinstance(o, str) else self.constant(o) for o in operands]
        result = to or f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, names, [result], **attributes))
        if to:
            self.outputs.append(to)
        return result

    def model(self):
        inputs = {n: np.zeros(s, np.int64) if n == "i" else s for n, s in self.inputs.items()}
        parts = (self.nodes, inputs, self.outputs, self.constants)
        return build(*parts, opset=18, element_type=None)


def scaled(factor):
    return np.array([1, 1, factor, factor], np.float32)


RESIZES = {
    "nearest": {"mode": "nearest", "coordinate_transformation_mode": "asymmetric",
                "nearest_mode": "floor"},
    "linear": {"mode": "linear"},
    "corners": {"mode": "linear", "coordinate_transformation_mode": "align_corners"},
    "cubic": {"mode": "cubic"},
}  # fmt: skip
PADS = ints(0, 0, 1, 2, 0, 0, 2, 1)


def spatial(g, x, to):
    """Apply operators to a picture; ``to`` makes an output of each result and a name."""
    to(g.node("Pad", x, PADS), "pad_zeros")
    to(g.node("Pad", x, ints(0, 1, 0, 2, 0, 3, 0, 0), np.float32(1.5)), "pad_channels")
    for mode in ("reflect", "edge", "wrap"):
        to(g.node("Pad", x, PADS, mode=mode), f"pad_{mode}")
    for name, attributes in RESIZES.items():
        factor = 2.0 if name in ("nearest", "corners") else 1.5
        to(g.node("Resize", x, "", scaled(factor), **attributes), f"resize_{name}")
    to(g.node("Slice", x, ints(1, 1, 0), ints(6, 9, 9), ints(1, 2, 3), ints(2, 1, 3)), "slice")
    to(g.node("Gather", x, ints(4, 1, 1, 6), axis=1), "channels")
    to(g.node("Gather", x, ints(4, 1, 1, 6, 0), axis=3), "columns")
    to(g.node("Transpose", x, perm=[0, 1, 3, 2]), "turned")
    to(g.node("Concat", x, g.node("Neg", x), axis=1), "concat_channels")
    to(g.node("Concat", x, g.node("Neg", x), axis=3), "concat_columns")


@cache
def plain():
    """Return a network of all operators on plain tensors, and on other shapes."""
    g = Outputs(x=(2, 7, 12, 10), m=(40, 24), p=(13, 17), i=(5,))

    def to(value, name):
        g.node("Mul", value, np.float32(0.5), to=name)

    spatial(g, "x", to)
    to(g.node("Transpose", "x", perm=[0, 2, 3, 1]), "nhwc")
    to(g.node("Transpose", "x", perm=[3, 0, 2, 1]), "scattered")
    to(g.node("Transpose", "m", perm=[1, 0]), "matrix")
    to(g.node("Transpose", "p", perm=[1, 0]), "primes")
    turned = g.node("Transpose", "m", perm=[1, 0])
    to(g.node("Add", turned, random((24, 1))), "matrix_and_rows")
    to(g.node("Transpose", g.node("Reshape", "m", ints(4, 5, 6, 8)), perm=[0, 3, 2, 1]), "nested")
    to(g.node("Gather", "m", "i", axis=0), "rows")
    to(g.node("Gather", "m", "i", axis=1), "some_columns")
    to(g.node("Where", g.node("Greater", "p", np.float32(0)), "p", random((17,))), "where")
    to(g.node("Tile", "p", ints(2, 3)), "tile")
    to(g.node("Expand", g.node("Slice", "p", ints(0), ints(1), ints(1)), ints(9, 13, 17)), "expand")
    picture = g.node("Reshape", "m", ints(1, 8, 10, 12))
    for mode in ("DCR", "CRD"):
        to(g.node("DepthToSpace", picture, blocksize=2, mode=mode), f"to_space_{mode}")
    to(g.node("SpaceToDepth", picture, blocksize=2), "to_depth")
    for axis in (0, 1):
        to(g.node("CumSum", "p", np.array(axis, np.int64)), f"running_sum_{axis}")
    return g.model()


@cache
def blocked(channels):
    """Return a network of all operators between convolutions, in the blocked layout."""
    g = Outputs(x=(1, 3, 12, 10))
    rng = np.random.default_rng(7)

    def weight(outputs, inputs):
        values = rng.standard_normal((outputs, inputs, 1, 1)) / np.sqrt(inputs)
        return values.astype(np.float32)

    x = g.node("Conv", "x", weight(channels, 3))
    extents = {"pad_channels": channels + 4, "slice": 3, "channels": 4,
               "concat_channels": 2 * channels, "to_space": channels // 4,
               "to_depth": channels * 4}  # fmt: skip

    def to(value, name):
        g.node("Conv", value, weight(5, extents.get(name, channels)), to=name)

    spatial(g, x, to)
    if channels % 4 == 0:
        to(g.node("DepthToSpace", x, blocksize=2), "to_space")
    to(g.node("SpaceToDepth", x, blocksize=2), "to_depth")
    return g.model()
