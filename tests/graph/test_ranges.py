"""Which tensors stay in 32 bits where others are stored in 16, and which are warned of."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper
from support.first_stages import compiled_until
from support.norm_chains import Chain
from support.operators import build, random

from tvmflow.graph.ranges import Precision


def precision(form, shape=(1, 3, 8)) -> Precision:
    """Return what the analysis finds in a network from ``x`` to ``y``."""
    chain = Chain(shape, (2,))
    chain.nodes.append(helper.make_node("Identity", [form(chain)], ["y"]))
    model = build(chain.nodes, {"x": shape}, ["y"], chain.constants)
    return compiled_until("layout", model, target="opencl", dtype="fp16").precision


def test_a_sum_and_what_is_made_of_it_up_to_the_division():
    def form(c):
        total = c.add("Sqrt", c.add("Add", c.reduce("ReduceSum", "x"), 1.0))
        return c.add("Div", "x", total)

    found = precision(form)
    assert found.wide["reducesum0"] == "a sum of 8 numbers"
    assert set(found.wide) == {"reducesum0", "add1", "sqrt2"}
    assert found.wide["sqrt2"] == "computed from a sum of 8 numbers"
    assert not found.risky


def test_a_mean_that_only_layers_read_is_as_exact_as_what_it_is_of():
    """Squeeze and excite, and the end of most networks: their kernels are what they were."""
    shape = (1, 6, 4, 4)
    c = Chain(shape, (2, 3))
    weight = c.constant(random((6, 6, 1, 1)))
    gate = c.add("Sigmoid", c.add("Conv", c.reduce("ReduceMean", "x"), weight))
    flat = c.add("Flatten", c.add("GlobalAveragePool", c.add("Mul", "x", gate)))
    c.nodes.append(helper.make_node("Gemm", [flat, c.constant(random((6, 5)))], ["y"]))
    model = build(c.nodes, {"x": shape}, ["y"], c.constants)
    found = compiled_until("layout", model, target="opencl", dtype="fp16").precision
    assert not found.wide
    assert not found.risky


def test_a_mean_that_is_subtracted_is_not():
    found = precision(lambda c: c.add("Sub", "x", c.reduce("ReduceMean", "x")))
    assert set(found.wide) == {"reducemean0"}


def test_squares_and_exponentials_that_are_summed():
    def form(c):
        square = c.add("Mul", "x", "x")
        power = c.add("Exp", "x")
        sums = c.add("Add", c.reduce("ReduceMean", square), c.reduce("ReduceSum", power))
        return c.add("Div", c.add("Add", square, power), sums)

    found = precision(form)
    assert found.wide["mul0"] == "squares that are summed"
    assert found.wide["exp1"] == "exponentials that are summed"
    assert "add5" in found.risky  # the numerator is large, and nothing sums it


def test_a_softmax_of_what_is_less_its_maximum():
    def form(c):
        power = c.add("Exp", c.add("Sub", "x", c.reduce("ReduceMax", "x")))
        return c.add("Div", power, c.reduce("ReduceSum", power))

    found = precision(form)
    assert set(found.wide) == {"reducesum3"}
    assert not found.risky


def test_masks_of_large_numbers():
    """The numbers of a mask stay; a softmax takes minus infinity for them."""

    def form(c):
        mask = c.add("Mul", c.add("Sub", 1.0, "x"), -1e9)
        return c.add("Softmax", c.add("Add", "x", c.add("Clip", mask, -1e9, 1e9)), axis=-1)

    found = precision(form)
    assert found.wide["mul1"] == "made of a constant beyond 65504"
    assert not any(name.startswith("add") for name in (*found.wide, *found.risky))


@pytest.mark.parametrize(
    ("operator", "operand", "is_risky"),
    [("Pow", 3.0, True), ("Mul", 300.0, True), ("Mul", 200.0, False), ("Div", 1e-3, True)],
)
def test_estimates(operator, operand, is_risky):
    """Inputs are up to 255."""
    found = precision(lambda c: c.add(operator, "x", operand))
    assert bool(found.risky) == is_risky


@pytest.mark.parametrize("limit", ["Sigmoid", "Tanh", "Clip"])
def test_limits(limit):
    limits = (0.0, 6.0) if limit == "Clip" else ()
    found = precision(lambda c: c.add("Mul", c.add(limit, c.add("Exp", "x"), *limits), 1e4))
    assert {name.rstrip("0123456789") for name in found.risky} == {"exp"}


def test_fp32_is_not_looked_at():
    c = Chain((2, 3), (1,))
    c.nodes.append(helper.make_node("ReduceSum", ["x", c.constant(np.array([1]))], ["y"]))
    model = build(c.nodes, {"x": (2, 3)}, ["y"], c.constants)
    assert not compiled_until("layout", model, target="opencl").precision.wide
