"""Code generation: splat folding, kernel names, scheduling of single functions."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper
from support.operators import build
from tvm import te

import tvmflow
from tvmflow.codegen.opencl_source import fold_splats
from tvmflow.compiler.scheduling import schedule_module
from tvmflow.devices.target import resolve
from tvmflow.errors import CompileError
from tvmflow.schedules import fallback, injective
from tvmflow.schedules.pooling import output_extent
from tvmflow.schedules.sizes import largest_divisor, tile_of


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
    mod, choices = schedule_module(IRModule({"plus": function}), resolve("llvm"))
    assert {n: c.family for n, c in choices.items()} == {"plus": "moving"}
    assert mod["plus"].attrs["tirx.is_scheduled"]


def five_lanes(workload, knobs):
    """Schedule vectors of five lanes, for which OpenCL C has no type: no code can be generated."""
    (block,) = workload.blocks
    sch = workload.sch
    outer, lane = sch.split(sch.fuse(*sch.get_loops(block)), [None, 5])
    sch.bind(outer, "blockIdx.x")
    sch.vectorize(lane)
    return sch


def next_number():
    nodes = [helper.make_node("Add", ["x", "one"], ["y"], name="the_sum")]
    return build(nodes, {"x": (2, 5)}, ["y"], {"one": np.float32(1)})


@pytest.mark.opencl
def test_a_schedule_without_code_gives_way_to_the_fallback(monkeypatch, caplog):
    monkeypatch.setattr(injective, "apply", five_lanes)
    model = next_number()
    x = np.linspace(-1, 1, 10, dtype=np.float32).reshape(2, 5)
    with tvmflow.compile(model, target="opencl", device="cpu") as module:
        np.testing.assert_allclose(module(x=x)["y"], x + 1, rtol=1e-5)
        assert {s["family"] for s in module.metadata["schedules"].values()} == {"fallback"}
    assert "node the_sum" in caplog.text
    assert "the fallback is used" in caplog.text


@pytest.mark.opencl
def test_code_that_cannot_be_generated_names_function_and_node(monkeypatch):
    monkeypatch.setattr(injective, "apply", five_lanes)
    monkeypatch.setattr(fallback, "apply", five_lanes)
    model = next_number()
    with pytest.raises(CompileError, match=r"primary function add \(node the_sum\) could not"):
        tvmflow.compile(model, target="opencl", device="cpu")
