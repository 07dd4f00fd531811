"""Which initializers of the model a weight was made of."""

from __future__ import annotations

import numpy as np
from onnx import helper
from support.onnx_models import model_of

import tvmflow


def compiled(nodes, weights, shape=(1, 3, 8, 8)):
    rng = np.random.default_rng(3)
    constants = {name: rng.random(extents, np.float32) + 0.5 for name, extents in weights.items()}
    model = model_of(nodes, {"x": shape}, "y", constants, opset=18)
    return tvmflow.compile(model, target="llvm").metadata["initializers"]


def test_weights_are_told_apart_in_the_order_in_which_nodes_read_them():
    nodes = [
        helper.make_node("Conv", ["x", "c.weight", "c.bias"], ["c"], name="conv"),
        helper.make_node("PRelu", ["c", "slope"], ["y"], name="prelu"),
    ]
    found = compiled(nodes, {"c.weight": (5, 3, 3, 3), "c.bias": (5,), "slope": (5, 1, 1)})
    assert [tuple(names) for names in found.values()] == [("c.weight",), ("c.bias",), ("slope",)]


def test_what_was_folded_is_made_of_all_that_went_in():
    nodes = [
        helper.make_node("Transpose", ["t"], ["w"], perm=[1, 0, 2, 3]),
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv"),
        helper.make_node("BatchNormalization", ["c", "g", "b", "m", "v"], ["y"], name="norm"),
    ]
    found = compiled(nodes, {"t": (3, 5, 1, 1), "g": (5,), "b": (5,), "m": (5,), "v": (5,)})
    assert sorted(map(tuple, found.values())) == [("g", "b", "m", "v"), ("t", "g", "v")]
