"""Operators with hundreds of inputs, whose compile time must grow no faster than their number."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper
from support.first_stages import compiled_until
from support.onnx_models import expected, model_of
from support.operators import feeds_for

import tvmflow
from tvmflow.frontend.load import load_model

pytestmark = pytest.mark.onnxruntime


def concatenation(count, axis):
    """Build a Concat of parts with two alternating extents."""
    inputs = {"a": (3, 2, 5), "b": (3, 2, 5)}
    shape = [3, 2, 5]
    shape[axis] = 1
    inputs["b"] = tuple(shape)
    names = ["ab"[i % 3 == 0] for i in range(count)]
    return model_of([helper.make_node("Concat", names, ["y"], axis=axis)], inputs)


def check(model, target="llvm"):
    feeds = feeds_for(model)
    (wanted,) = expected(model, feeds)
    with tvmflow.compile(model, target=target) as module:
        np.testing.assert_allclose(module(feeds)["y"], wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("target", ["llvm", pytest.param("opencl", marks=pytest.mark.opencl)])
@pytest.mark.parametrize(("count", "axis"), [(33, 0), (400, 1)])
def test_concatenation(count, axis, target):
    check(concatenation(count, axis), target)


def test_no_function_joins_many_parts():
    """2,000 parts are concatenated by functions with at most 32 inputs, most of them shared."""
    mod = load_model(concatenation(2000, 1)).mod
    counts = [len(function.params) for name, function in mod.functions.items()
              if name.name_hint.startswith("join")]  # fmt: skip
    assert counts
    assert max(counts) <= 33  # 32 inputs and the result
    assert len(counts) < 20


def pieces(count, axis=1, join=True):
    """Build a Split whose parts are concatenated in another order or added; the last is shorter."""
    shape = [3, 2, 5]
    shape[axis] = 2 * count - 1
    names = [f"s{index}" for index in range(count)]
    last = helper.make_node("Concat", names[::-1], ["y"], axis=axis)
    if not join:
        last = helper.make_node("Sum", names[:-1], ["y"])
    split = helper.make_node("Split", ["a", "lengths"], names, axis=axis)
    lengths = np.array([2] * (count - 1) + [1])
    return model_of([split, last], {"a": shape}, "y", {"lengths": lengths})


@pytest.mark.slow
@pytest.mark.parametrize("target", ["llvm", pytest.param("opencl", marks=pytest.mark.opencl)])
@pytest.mark.parametrize(("count", "axis", "join"), [(33, 0, True), (300, 1, True), (70, 2, False)])
def test_parts_of_a_tensor(count, axis, join, target):
    check(pieces(count, axis, join), target)


def test_many_parts_share_their_functions():
    """300 parts need 32 functions that cut them from groups, 10 that cut groups, and 10 joins."""
    compiled = compiled_until("schedule", pieces(300), target="llvm")
    assert len(compiled.schedules) < 60


def test_unused_parts_are_not_cut():
    model = pieces(300)
    joined = model.graph.node[1]
    del joined.input[40:]
    functions = load_model(model).mod.functions
    # Only the last parts are used, which are in two of the ten groups.
    assert sum(name.name_hint.startswith("part") for name in functions) == 2


@pytest.mark.parametrize("op_type", ["Sum", "Mean"])
def test_operators_of_many_inputs(op_type):
    names = ["ab"[i % 3 == 0] for i in range(1200)]
    model = model_of([helper.make_node(op_type, names, ["y"])], {"a": (3, 5), "b": (5,)})
    assert load_model(model).mod is not None
    del model.graph.node[0].input[40:]
    check(model)


@pytest.mark.parametrize("op_type", ["Max", "Min"])
@pytest.mark.parametrize("count", [6, 40])
def test_extremes_of_many_tensors(op_type, count):
    """Max and Min compile, with NaN, infinities and broadcasting as in ONNX Runtime."""
    rng = np.random.default_rng(5)
    shapes = {f"x{i}": [(5,), (4, 5), (4, 1)][i % 3] for i in range(count)}
    model = model_of([helper.make_node(op_type, [*shapes, "x0"], ["y"])], shapes)
    feeds = {name: rng.standard_normal(shape).astype("f4") for name, shape in shapes.items()}
    for value, special in ((feeds["x1"], np.nan), (feeds["x4"], np.inf), (feeds["x2"], -np.inf)):
        value[1, 0] = special
    (wanted,) = expected(model, feeds)
    assert np.isnan(wanted).any()
    with tvmflow.compile(model, target="llvm") as module:
        np.testing.assert_array_equal(module(feeds)["y"], wanted)
