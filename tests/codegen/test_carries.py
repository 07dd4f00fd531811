"""Divisions of indices with carries: regrouping axes and flattening buffers keep every number."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import tvm
import tvm_ffi
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import s_tir, sym, te, tirx
from tvm.ir import Range
from tvm.ir.expr import TensorLoad

from tvmflow.codegen.index_divisions import HideDivisions, RestoreDivisions
from tvmflow.codegen.tir_pipeline import TIR_PIPELINE
from tvmflow.graph.layout.rules import injective
from tvmflow.schedules.data_parallel import Axis, regroup

_NUMPY = {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply,
    "FloorDiv": np.floor_divide, "FloorMod": np.mod, "Min": np.minimum, "Max": np.maximum,
}  # fmt: skip


def value_of(expr, values):
    """Evaluate an index for arrays of its variables."""
    if isinstance(expr, tirx.IntImm):
        return int(expr)
    if isinstance(expr, tirx.Var):
        return values[expr.name]
    return _NUMPY[type(expr).__name__](value_of(expr.a, values), value_of(expr.b, values))


def number(value):
    return tirx.IntImm("int64", value)


@st.composite
def indices(draw):
    """Draw an index and its variables' extents."""
    extents = draw(st.lists(st.sampled_from([2, 3, 4, 5, 8, 12, 16, 32]), min_size=1, max_size=3))
    variables = [tirx.Var(f"v{i}", "int64") for i in range(len(extents))]
    divisor = st.sampled_from([2, 3, 4, 8, 16, 32]).map(number)
    added = st.sampled_from([1, 2, 3, 5, 8, 14, 16]).map(number)
    expr = st.recursive(
        st.sampled_from(variables),
        lambda inner: st.one_of(
            st.builds(tirx.Add, inner, added),
            st.builds(tirx.Mul, inner, divisor),
            st.builds(tirx.Add, inner, inner),
            st.builds(tirx.FloorDiv, inner, divisor),
            st.builds(tirx.FloorMod, inner, divisor),
        ),
        max_leaves=4,
    )
    return draw(expr), variables, extents


def mapped(change, expr):
    """Return an index after a pass."""
    mod = change(tvm.IRModule({"main": tirx.PrimFunc([], tirx.Evaluate(expr))}))
    return mod["main"].body.value


@settings(max_examples=150, deadline=None, derandomize=True)
@given(indices())
def test_what_flattening_simplifies_is_the_same_number(drawn):
    expr, variables, extents = drawn
    ranges = {v: Range(number(0), number(e)) for v, e in zip(variables, extents, strict=True)}
    (simplified,) = sym.iter_map_simplify([mapped(HideDivisions, expr)], ranges)
    shown = mapped(RestoreDivisions, simplified)
    grid = np.meshgrid(*[np.arange(e) for e in extents], indexing="ij")
    values = {v.name: g for v, g in zip(variables, grid, strict=True)}
    np.testing.assert_array_equal(value_of(shown, values), value_of(expr, values))


@pytest.mark.parametrize("kind", [tirx.FloorDiv, tirx.FloorMod])
@pytest.mark.parametrize("added", [-3, -1, 1, 2, 7])
@pytest.mark.parametrize("factor", [1, 2])
def test_what_is_added_to_a_remainder_carries(kind, added, factor):
    """Check the quotient and remainder of ``(v % m * factor ± added)`` by several ``d``."""
    for m, d in product((4, 8, 16), (2, 4, 8)):
        v = tirx.Var("v", "int64")
        extent = 2 * m
        remainder = tirx.Mul(tirx.floormod(v, number(m)), number(factor))
        sign = tirx.Add if added > 0 else tirx.Sub
        expr = kind(sign(remainder, number(abs(added))), number(d))
        hidden = mapped(HideDivisions, expr)
        (simplified,) = sym.iter_map_simplify([hidden], {v: Range(number(0), number(extent))})
        shown = mapped(RestoreDivisions, simplified)
        values = {"v": np.arange(extent)}
        np.testing.assert_array_equal(value_of(shown, values), value_of(expr, values))


def test_tvm_still_loses_carries():
    # If this fails, TVM has fixed the bug, and the workaround can be deleted.
    v = tirx.Var("v", "int64")
    lost = sym.iter_map_simplify(
        [tirx.floordiv(tirx.floormod(v, number(4)) + number(1), number(4))],
        {v: Range(number(0), number(8))},
    )
    assert value_of(lost[0], {"v": 3}) == 0


def sliced(begin, channels, block, step=1):
    """Return TE that copies a slice of channels of a blocked tensor to a plain one."""
    total = -(-(begin + step * channels) // block)
    x = te.placeholder((1, total, 2, 3, block), "float32", "x")
    taken = injective.rearrange(
        (1, channels, 2, 3), block, "float32",
        lambda n, c, y, v: injective.element(x, n, begin + c * step, y, v),
        "slice", guarded=begin % block != 0 or step != 1,
    )  # fmt: skip
    result = te.compute(
        (1, channels, 2, 3),
        lambda n, c, y, v: taken[n, c // block, y, v, c % block],
        name="unpack",
    )
    return te.create_prim_func([x, result])


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    begin=st.integers(0, 40),
    channels=st.integers(1, 40),
    block=st.sampled_from([4, 8, 16]),
    step=st.sampled_from([1, 1, 2, 3]),
)
def test_axes_of_a_slice_are_regrouped_exactly(begin, channels, block, step):
    schedule = s_tir.Schedule(sliced(begin, channels, block, step))
    schedule.compute_inline(schedule.get_sblock("slice"))
    block_rv = schedule.get_sblock("unpack")
    found = schedule.get(block_rv)
    axes = [Axis(v.var, int(v.dom.extent), i) for i, v in enumerate(found.iter_vars)]
    regroup(schedule, block_rv, axes, [[0, 1], [2, 3]])
    got = schedule.get(block_rv)
    assert [int(v.dom.extent) for v in got.iter_vars] == [channels, 6]

    c, pixel = np.meshgrid(np.arange(channels), np.arange(6), indexing="ij")
    values = {"v0": c, "v1": pixel}
    loads = []
    tvm_ffi.structural_walk(got.body.value, (TensorLoad, loads.append))
    at = begin + step * c
    expected = [0 * c, at // block, pixel // 3, pixel % 3, at % block]
    for load in loads:
        for index, wanted in zip(load.indices, expected, strict=True):
            np.testing.assert_array_equal(np.broadcast_to(value_of(index, values), c.shape), wanted)
    for index, wanted in zip(got.body.indices, [0 * c, c, pixel // 3, pixel % 3], strict=True):
        np.testing.assert_array_equal(np.broadcast_to(value_of(index, values), c.shape), wanted)


def test_digits_of_an_axis_are_put_together_again():
    x = te.placeholder((6, 10), "float32", "x")
    schedule = s_tir.Schedule(
        te.create_prim_func([x, te.compute((6, 10), lambda i, j: x[i, j] * 2, name="twice")])
    )
    block = schedule.get_sblock("twice")
    i, _ = schedule.get(block).iter_vars
    high, low = (tirx.Var(name, "int32") for name in ("high", "low"))
    axes = [Axis(i.var, 6, 0), Axis(high, 2, 1, 5, False), Axis(low, 5, 1, 5, True)]
    regroup(schedule, block, axes, [[2], [0, 1]])
    got = schedule.get(block)
    first, second = np.meshgrid(np.arange(5), np.arange(12), indexing="ij")
    values = {"v0": first, "v1": second}
    row, column = (value_of(index, values) for index in got.body.indices)
    np.testing.assert_array_equal(row, second // 2)
    np.testing.assert_array_equal(column, second % 2 * 5 + first)
    # The schedule continues with it: its loops are those of the new axes.
    assert [int(schedule.get(loop).extent) for loop in schedule.get_loops(block)] == [5, 12]
    schedule.vectorize(schedule.split(schedule.get_loops(block)[1], [None, 4])[1])


def test_axes_that_are_one_count_in_their_order():
    shape = (2, 3, 5)
    x = te.placeholder(shape, "float32", "x")
    result = te.compute(shape, lambda i, j, k: x[i, j, k] * 2, name="twice")
    schedule = s_tir.Schedule(te.create_prim_func([x, result]))
    block = schedule.get_sblock("twice")
    found = schedule.get(block).iter_vars
    axes = [Axis(v.var, int(v.dom.extent), number) for number, v in enumerate(found)]
    regroup(schedule, block, axes, [[0, 1, 2]])
    flat = np.arange(30)
    found = [value_of(index, {"v0": flat}) for index in schedule.get(block).body.indices]
    np.testing.assert_array_equal(found, np.unravel_index(flat, shape))


@pytest.mark.parametrize("begin", [1, 2, 5, 14])
def test_code_of_a_slice_is_right(begin):
    import tvm

    channels, block = 37, 16
    function = sliced(begin, channels, block).with_attr(
        {"tirx.is_scheduled": True, "global_symbol": "main"}
    )
    built = tvm.tirx.build(function, target="llvm", pipeline=TIR_PIPELINE)
    total = -(-(begin + channels) // block)
    x = np.random.default_rng(begin).standard_normal((1, total, 2, 3, block)).astype(np.float32)
    result = tvm.runtime.tensor(np.zeros((1, channels, 2, 3), np.float32))
    built["main"](tvm.runtime.tensor(x), result)
    plain = x.transpose(0, 1, 4, 2, 3).reshape(1, -1, 2, 3)
    np.testing.assert_array_equal(result.numpy(), plain[:, begin : begin + channels])


def test_hiding_leaves_other_divisions():
    x = te.placeholder((8,), "float32", "x")
    function = te.create_prim_func([x, te.compute((4, 2), lambda i, j: x[i * 2 % 8 // 2 + j])])
    import tvm

    (hidden,) = HideDivisions(tvm.IRModule({"main": function})).functions.values()
    assert "tvmflow_carry" not in hidden.script()
