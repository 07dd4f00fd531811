"""Passes before CUDA's code generator, which would take a load for an earlier one of equal text."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest
import tvm
from support.cuda_host import cuda_host
from support.operators import feeds_for, single
from tvm import tirx
from tvm.sym import Analyzer

import tvmflow
from tvmflow.codegen.cuda_passes import BindLoads, DivideVectors
from tvmflow.ir.expressions import nodes_in, substitute_vars
from tvmflow.verify.tolerance import STORED_AS_HALF, assert_close

LANES = tirx.Ramp(0, 1, 4)


def kernel(*statements, target="cuda"):
    body = tirx.SeqStmt(list(statements))
    return tirx.PrimFunc([], body).with_attr("target", tvm.target.Target(target))


def bound(function):
    return BindLoads(tvm.IRModule({"main": function}))["main"]


def sums():
    return tirx.decl_buffer((16,), "float32", name="sums")


@pytest.mark.parametrize("form", ["cast", "function", "choice"])
def test_each_load_of_an_operand_has_a_variable_of_its_own(form):
    """Two loads have the same text and a store in between."""
    buffer = sums()
    load = tirx.BufferLoad(buffer, [LANES])
    value = {
        "cast": lambda: tirx.Cast("float32x4", tirx.Cast("float16x4", load)),
        "function": lambda: tirx.call_pure_extern(load.ty, "f", load, load * 2.0),
        "choice": lambda: tirx.Select(load > load * 2.0, load, load),
    }[form]()
    store = tirx.BufferStore(buffer, value, [LANES])
    text = str(bound(kernel(store, store)))
    read = "= sums[T.Ramp(0, 1, 4)]"
    before, after = text.split("    sums[0:4] = ", 1)
    # The operand of the second statement is bound after the first store; nothing else is read.
    assert before.count(read) == after.count(read) >= 1
    assert text.count("sums[") == text.count(read) + 2
    names = [line.split(":")[0].strip() for line in text.splitlines() if read in line]
    assert len(set(names)) == len(names)


def test_what_is_read_on_a_condition_stays_there():
    buffer = sums()
    test = tirx.Var("inside", "bool")
    load = tirx.Cast("float16x4", tirx.BufferLoad(buffer, [LANES]))
    choice = tirx.if_then_else(test, load, tirx.Broadcast(tirx.const(0, "float16"), 4))
    target = tirx.decl_buffer((4,), "float16", name="y")
    function = kernel(*[tirx.BufferStore(target, choice, [LANES])] * 2)
    assert str(bound(function)) == str(function)


def test_numbers_and_other_targets_stay_as_they_are():
    buffer = sums()
    one = tirx.Cast("float32", tirx.Cast("float16", tirx.BufferLoad(buffer, [0])))
    function = kernel(*[tirx.BufferStore(buffer, one, [0])] * 2)
    assert str(bound(function)) == str(function)
    four = tirx.Cast("float32x4", tirx.Cast("float16x4", tirx.BufferLoad(buffer, [LANES])))
    function = kernel(*[tirx.BufferStore(buffer, four, [LANES])] * 2, target="opencl")
    assert str(bound(function)) == str(function)


@pytest.mark.parametrize(
    ("index", "kept"),
    [
        (lambda g, lane: g * 24 + lane, False),
        (lambda g, lane: g * 24 - 8 + lane, False),
        (lambda g, lane: (g * 40 + lane) % 64 * 16 + lane, False),
        # Lanes on both sides of a multiple.
        (lambda g, lane: g * 24 + 4 + lane, True),
        (lambda g, lane: g * 12 + lane, True),
        (lambda g, lane: g * 24 + lane * 2, True),
    ],
)
@pytest.mark.parametrize("divide", [tirx.floordiv, tirx.floormod])
def test_quotients_of_lanes_are_those_of_their_vector(index, kept, divide):
    """All numbers stay the same, negative ones, too."""
    g, lane = tirx.Var("g", "int32"), tirx.Var("lane", "int32")
    before = divide(index(g, lane), 48)
    store = tirx.BufferStore(tirx.decl_buffer((8,), "int32", name="y"), before, [lane])
    kind = tirx.ForKind.VECTORIZED
    function = kernel(tirx.For(lane, 0, 8, kind, store), tirx.Evaluate(0))
    function = DivideVectors(tvm.IRModule({"main": function}))["main"]
    (after,) = (found.value for found in nodes_in(function.body, tirx.BufferStore))
    assert (str(after) == str(before)) == kept
    for number in range(-3, 9):
        for each in range(8):
            places = {g: tirx.const(number, "int32"), lane: tirx.const(each, "int32")}
            old, new = (Analyzer().simplify(substitute_vars(e, places)) for e in (before, after))
            assert int(old) == int(new)


@pytest.mark.cuda_host
def test_maxima_of_a_window_are_taken_of_those_before():
    """The window is unrolled, with no scope between one maximum and the next."""
    model = single("MaxPool", [(1, 7, 12, 12)], kernel_shape=[3, 3], strides=[3, 3])
    feeds = feeds_for(model)
    with closing(tvmflow.compile(model, target="cuda", dtype="fp16")) as module:
        output = cuda_host()(module, feeds)["y"]
    (x,) = feeds.values()
    windows = x.reshape(1, 7, 4, 3, 4, 3)
    assert_close(output, np.asarray(windows.max((3, 5))), STORED_AS_HALF)
