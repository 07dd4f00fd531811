"""Precision lost by 16-bit storage: the first tensor that loses it, and what to keep in 32 bits."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper
from support.norm_chains import Chain
from support.operators import build, random

from tvmflow.errors import InputError
from tvmflow.verify.halves import LOSS, Halves, half_names

pytestmark = pytest.mark.onnxruntime

SHAPE = (2, 8)


def halves(form, x=None, shape=SHAPE):
    """Return `Halves` for nodes from ``x`` to ``y``; by default ``x`` is between about -3 and 3."""
    chain = Chain(shape, (1,))
    chain.nodes.append(helper.make_node("Identity", [form(chain)], ["y"]))
    model = build(chain.nodes, {"x": shape}, ["y"], chain.constants)
    return Halves(model, {"x": random(shape) if x is None else x}, {})


def every(measured):
    return {name for name in measured.nodes if name != "y"}


def test_an_overflow_is_kept_itself():
    measured = halves(lambda c: c.add("Mul", c.add("Mul", "x", 1e5), 1e-5))
    (loss,) = measured.losses(every(measured))
    assert (loss.tensor, loss.is_infinite, loss.is_choice) == ("mul0", True, False)
    assert "infinite in 16 bits, up to 1" in str(loss)
    kept = measured.keep(every(measured))
    assert set(kept.tensors) == {"mul0"}
    assert not kept.given_up
    # A tensor that is not stored cannot overflow.
    assert not measured.losses({"mul1"})


def test_of_a_cancellation_the_operands_are_kept():
    measured = halves(lambda c: c.add("Sub", c.add("Add", "x", 500.0), 500.0))
    (loss,) = measured.losses(every(measured))
    assert loss.tensor == "sub1"
    assert LOSS < loss.error < 1
    assert "'sub1' (Sub) is the first that loses digits" in str(loss)
    assert set(measured.keep(every(measured)).tensors) == {"add0"}


def test_operands_further_up_are_kept_where_nearer_ones_are_not_stored():
    """In E[x²] - E[x]², only the mean is stored."""
    shape = (4, 64)
    x = random(shape) + 60

    def form(c):
        mean = c.reduce("ReduceMean", "x")
        square = c.reduce("ReduceMean", c.add("Mul", "x", "x"))
        return c.add("Sub", square, c.add("Mul", mean, mean))

    measured = halves(form, x, shape)
    assert set(measured.keep({"reducemean0", "sub4"}).tensors) == {"reducemean0"}


def test_small_numbers_lose_their_digits():
    measured = halves(lambda c: c.add("Mul", c.add("Mul", "x", 1e-7), 1e7))
    assert set(measured.keep(every(measured)).tensors) == {"mul0"}


def test_a_choice_is_not_a_loss_of_digits():
    """More bits would not restore an index that rounding changed between nearly equal elements."""
    x = np.float32([[1, 1.0001, 0.5, 0], [3, 2, 2.9999, 3.0001]])

    def form(c):
        return c.add("Cast", c.add("ArgMax", c.add("Mul", "x", 1.1), axis=1), to=TensorProto.FLOAT)

    measured = halves(form, x, (2, 4))
    (loss,) = measured.losses(every(measured))
    assert (loss.operator, loss.is_choice) == ("ArgMax", True)
    kept = measured.keep(every(measured))
    assert not kept.tensors
    assert list(kept.given_up) == [loss.tensor]


def test_minus_infinity_is_a_mask_to_a_softmax():
    def form(c):
        mask = c.add("Mul", c.constant(np.float32([[0] * 7 + [1]])), -1e9)
        return c.add("Softmax", c.add("Add", "x", mask), axis=-1)

    measured = halves(form)
    assert not measured.losses(every(measured))


def test_minus_infinity_is_a_loss_where_it_comes_back():
    def form(c):
        large = c.add("Mul", c.add("Abs", "x"), -1e6)
        return c.add("Mul", large, 1e-6)

    measured = halves(form)
    assert [loss.tensor for loss in measured.losses(every(measured))] == ["mul1"]


def test_what_cannot_be_helped_costs_nothing():
    """The application passes the input in 16 bits: keeping tensors in 32 restores no digits."""
    measured = halves(lambda c: c.add("Sub", "x", 3000.0), random(SHAPE) + 3000)
    kept = measured.keep({"sub0"})
    assert not kept.tensors


def test_inputs_that_do_not_fit():
    with pytest.raises(InputError, match="ONNX Runtime failed"):
        halves(lambda c: c.add("Neg", "x"), np.zeros((3, 3), np.float32))


def test_an_input_may_be_too_large_itself():
    measured = halves(lambda c: c.add("Mul", "x", 1e-5), random(SHAPE) * 1e6)
    (loss,) = measured.losses({"x", "mul0"})
    assert "are in the input 'x'" in str(loss)
    assert set(measured.keep({"x", "mul0"}).tensors) == {"x"}
    assert not measured.losses({"mul0"})


def test_names_of_tensors_between_functions():
    measured = halves(lambda c: c.add("Neg", c.add("Abs", "x")))
    assert measured.named(["abs0_blocked", "neg11", "x_0_0_blocked", "other"]) == {
        "abs0", "neg1", "x",
    }  # fmt: skip


def test_names_of_a_module():
    places = [
        {"tensor": "a", "stored_as": "float16", "constant": False},
        {"tensor": "b", "stored_as": "float32", "constant": False},
        {"tensor": "c", "stored_as": "float16", "constant": True},
    ]
    assert half_names({"placements": places}) == ["a"]
    assert half_names({"halves": ["b"], "placements": places}) == ["b"]
    assert half_names({}) is None
