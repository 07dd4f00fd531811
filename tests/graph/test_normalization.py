"""Normalisations written as primitives become one operator, and nothing else does."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper
from onnx.numpy_helper import to_array
from support import norm_chains
from support.first_stages import through
from support.norm_chains import Chain
from support.operators import build, random

import tvmflow
from tvmflow.frontend.load import load_model
from tvmflow.ir.rewriter import op_name
from tvmflow.verify.tolerance import NETWORK, assert_close

CASES = {
    "rows": ((3, 5, 8), (2,), False),
    "channels": ((2, 6, 3, 3), (1,), False),
    "pictures": ((2, 6, 3, 5), (2, 3), True),
    "leading": ((6, 4), (0,), False),
    "square": ((4, 4), (1,), False),
    "layers": ((2, 3, 4, 5), (1, 2, 3), False),
}
REDUCTIONS = {"relax.mean", "relax.sum", "relax.sqrt", "relax.divide"}


def operators(model):
    mod = through("simplify", load_model(model).mod, target="llvm")
    bindings = (b for block in mod["main"].body.blocks for b in block.bindings)
    return [name for b in bindings if (name := op_name(b.value)) is not None]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("form", norm_chains.NORMALISATIONS)
def test_forms_of_exporters(form, case):
    shape, axes, conv = CASES[case]
    found = operators(norm_chains.network(form, shape, axes, conv=conv, opset=18))
    norms = [name for name in found if name.endswith("_norm")]
    assert norms == ["relax.nn.rms_norm" if form.startswith("rms") else "relax.nn.layer_norm"]
    assert not REDUCTIONS.intersection(found)


@pytest.mark.parametrize("form", norm_chains.STATISTICS)
def test_others_stay(form):
    found = operators(norm_chains.network(form, (3, 5, 8), (2,)))
    assert not any(name.endswith("_norm") for name in found)


def unsqueezed(c, x):
    """Reductions that drop their axis, and a power for the root."""
    last = c.constant(np.array([-1]))
    centred = c.add("Sub", x, c.add("Unsqueeze", c.reduce("ReduceMean", x, keepdims=0), last))
    variance = c.reduce("ReduceMean", c.add("Pow", centred, 2.0), keepdims=0)
    root = c.add("Pow", c.add("Add", variance, 1e-5), 0.5)
    return c.add("Div", centred, c.add("Unsqueeze", root, last))


def centred_twice(c, x):
    """Each reader of the difference has one of its own, and the epsilon stands first."""
    mean = c.reduce("ReduceMean", x)
    first, second = c.add("Sub", x, mean), c.add("Sub", x, mean)
    variance = c.reduce("ReduceMean", c.add("Mul", first, first))
    inverse = c.add("Reciprocal", c.add("Sqrt", c.add("Add", 1e-6, variance)))
    return c.add("Mul", inverse, second)


def root_of_the_inverse(c, x):
    mean = c.add("Mul", c.reduce("ReduceSum", x), 1 / c.length)
    square = c.add("Div", c.reduce("ReduceSumSquare", x), float(c.length))
    variance = c.add("Max", 0.0, c.add("Sub", square, c.add("Pow", mean, 2.0)))
    inverse = c.add("Sqrt", c.add("Reciprocal", c.add("Add", variance, 1e-6)))
    return c.add("Mul", c.add("Sub", x, mean), inverse)


def negated_shift(c, x):
    """``x * r + -(m * r)``."""
    mean = c.reduce("ReduceMean", x)
    variance = c.reduce("ReduceMean", c.add("Pow", c.add("Sub", x, mean), 2.0))
    inverse = c.add("Reciprocal", c.add("Sqrt", c.add("Add", variance, 1e-5)))
    return c.add("Add", c.add("Mul", x, inverse), c.add("Neg", c.add("Mul", mean, inverse)))


def without_epsilon(c, x):
    square = c.add("Div", c.reduce("ReduceSumSquare", x), float(c.length))
    return c.add("Div", x, c.add("Sqrt", square))


@pytest.mark.parametrize(
    ("form", "norm"),
    [
        (unsqueezed, "layer_norm"), (centred_twice, "layer_norm"),
        (root_of_the_inverse, "layer_norm"), (negated_shift, "layer_norm"),
        (without_epsilon, "rms_norm"),
    ],
)  # fmt: skip
def test_other_ways_to_write_it(form, norm):
    c = Chain((2, 3, 5), (2,))
    c.nodes.append(helper.make_node("Identity", [form(c, "x")], ["y"]))
    assert operators(build(c.nodes, {"x": (2, 3, 5)}, ["y"], c.constants)) == [f"relax.nn.{norm}"]


def of_variance(shape, change):
    """A normalisation in which `change` makes other statistics of ``x`` than those it needs."""
    c = Chain(shape, (len(shape) - 1,))
    made = {
        "mean": c.reduce("ReduceMean", "x"),
        "square": c.reduce("ReduceMean", c.add("Mul", "x", "x")),
        "epsilon": norm_chains.EPSILON,
        "x": "x",
    }
    made |= change(c)
    mean = made["mean"]
    variance = c.add("Sub", made["square"], c.add("Mul", mean, made.get("other", mean)))
    root = c.add("Sqrt", c.add("Add", variance, made["epsilon"]))
    c.nodes.append(helper.make_node("Div", [c.add("Sub", made["x"], mean), root], ["y"]))
    return build(c.nodes, {"x": shape}, ["y"], c.constants)


def _half(c, x="x"):
    return c.add("Div", c.add("ReduceSum", x, c.constant(np.array([-1]))), 5.0)


OTHERS = {
    "nothing": (lambda c: {}, True),
    "doubled_mean": (lambda c: {"mean": c.add("Mul", c.reduce("ReduceMean", "x"), 2.0)}, False),
    "sum_by_another_number": (lambda c: {"mean": _half(c)}, False),
    "square_of_another": (
        lambda c: {"square": c.reduce("ReduceMean", c.add("Mul", c.add("Abs", "x"), "x"))},
        False,
    ),
    "mean_of_other_axes": (
        lambda c: {"square": c.add("ReduceMean", c.add("Mul", "x", "x"), axes=[0, 1])},
        False,
    ),
    "other_factor": (lambda c: {"other": c.add("Abs", c.reduce("ReduceMean", "x"))}, False),
    "epsilon_of_each_row": (lambda c: {"epsilon": c.constant(np.ones((4, 1), "f"))}, False),
    "negative_epsilon": (lambda c: {"epsilon": -0.5}, False),
    "other_centre": (lambda c: {"x": c.add("Abs", "x")}, False),
    # Without its axis a number of each row meets a column.
    "columns": (lambda c: {"mean": c.reduce("ReduceMean", "x", keepdims=0)}, False),
}


@pytest.mark.parametrize("name", OTHERS)
def test_only_what_is_a_normalisation(name):
    change, is_one = OTHERS[name]
    found = operators(of_variance((4, 4), change))
    assert ("relax.nn.layer_norm" in found) == is_one


def test_statistics_of_columns_are_not_those_of_rows():
    """Rows and columns of a square matrix have the same number of elements."""
    c = Chain((4, 4), (1,))
    mean, square = (
        c.reduce("ReduceMean", each, keepdims=0) for each in ("x", c.add("Mul", "x", "x"))
    )
    variance = c.add("Sub", square, c.add("Mul", mean, mean))
    root = c.add("Sqrt", c.add("Add", variance, 1e-3))
    c.nodes.append(helper.make_node("Div", [c.add("Sub", "x", mean), root], ["y"]))
    model = build(c.nodes, {"x": (4, 4)}, ["y"], c.constants)
    assert "relax.nn.layer_norm" not in operators(model)


def test_results_that_others_read_stay():
    c = Chain((3, 8), (1,))
    y = norm_chains.NORMALISATIONS["jax"](c, "x")
    mean = next(node.output[0] for node in c.nodes if node.op_type == "Reshape")
    c.nodes += [
        helper.make_node("Identity", [y], ["y"]),
        helper.make_node("Neg", [mean], ["z"]),
    ]
    found = operators(build(c.nodes, {"x": (3, 8)}, ["y", "z"], c.constants))
    assert "relax.nn.layer_norm" in found
    assert "relax.sum" in found
    assert "relax.sqrt" not in found


@pytest.mark.parametrize("form", ["jax_expanded", "tf"])
def test_numbers(form):
    """The deviation is 1/100 of the mean, of which E[x²] - E[x]² keeps three digits in fp32."""
    model = norm_chains.network(form, (2, 3, 40), (2,))
    added, *affine = (
        to_array(t).astype(np.float64) for t in model.graph.initializer if list(t.dims) == [40]
    )
    scale, bias = affine or (1.0, 0.0)
    x = random((2, 3, 40)) + 100
    inner = (x + added.astype(np.float32)).astype(np.float64)
    centred = inner - inner.mean(2, keepdims=True)
    root = np.sqrt((centred**2).mean(2, keepdims=True) + norm_chains.EPSILON)
    with tvmflow.compile(model, target="llvm") as module:
        assert_close(module(x=x)["y"], (centred / root * scale + bias).astype("f"), NETWORK)
