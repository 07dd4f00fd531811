"""Code generation: splat folding, kernel names, scheduling of single functions."""

from __future__ import annotations

import pytest
from tvm import te

from tvmflow.build import schedule_module
from tvmflow.opencl_source import fold_splats
from tvmflow.schedules.pooling import output_extent
from tvmflow.schedules.tiles import largest_divisor, tile_of
from tvmflow.target import resolve


@pytest.mark.parametrize(
    ("source", "folded"),
    [
        ("((float4)(a[i], a[i], a[i], a[i]))", "((float4)(a[i]))"),
        ("((float2)(f(x, y), f(x, y)))", "((float2)(f(x, y)))"),
        ("((float4)(a, b, a, a))", "((float4)(a, b, a, a))"),
        (
            "((float2)(a[(1, 2)], a[(1, 2)])) + ((int2)(0, 0))",
            "((float2)(a[(1, 2)])) + ((int2)(0))",
        ),
        ("((float4)(a))", "((float4)(a))"),
        ("((float)x) + vload4(0, p)", "((float)x) + vload4(0, p)"),
        (
            "((half2)(((float2)(u, u)).x, ((float2)(u, u)).x))",
            "((half2)(((float2)(u)).x))",
        ),
        ("((float4)(a, a", "((float4)(a, a"),
    ],
)
def test_fold_splats(source, folded):
    assert fold_splats(source) == folded


def test_tiles_waste_little():
    assert largest_divisor(56, 14) == 14
    assert tile_of(112, 14) == 14
    assert tile_of(13, 14) == 13
    # A prime extent beyond the limit: three tiles of 11 cover 31 with two lanes idle.
    assert -(-31 // tile_of(31, 14)) * tile_of(31, 14) - 31 <= 2
    for extent in range(1, 200):
        tile = tile_of(extent, 14)
        assert 1 <= tile <= min(14, extent)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        # extent, window, stride, dilation, before, after, ceil
        ((10, 3, 2, 1, 0, 0, False), 4),
        ((10, 3, 2, 1, 0, 0, True), 5),
        ((4, 1, 3, 1, 0, 0, True), 2),
        ((1, 2, 2, 1, 0, 1, True), 1),
    ],
)
def test_pooling_output_extent(arguments, expected):
    assert output_extent(*arguments) == expected


def test_equal_names_do_not_matter_and_families_are_reported():
    from tvm import IRModule

    x = te.placeholder((4, 5), name="x")
    y = te.compute((4, 5), lambda i, j: x[i, j] + 1, name="y")
    function = te.create_prim_func([x, y]).with_attr("global_symbol", "plus")
    scheduled = schedule_module(IRModule({"plus": function}), resolve("llvm"))
    assert {n: c.family for n, c in scheduled.choices.items()} == {"plus": "moving"}
    assert scheduled.mod["plus"].attrs["tirx.is_scheduled"]
