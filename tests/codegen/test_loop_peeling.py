"""Kernels without tests inside a picture: when there are two bodies, and that both are right."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
import tvm_ffi
from onnx import helper
from support.onnx_models import expected, model_of
from tvm import tirx
from tvm.ir import Call, Op
from tvm.script import tirx as T
from tvm.sym import Analyzer

import tvmflow
from tvmflow.codegen.loop_peeling import PeelBorders
from tvmflow.ir.annotations import PEEL_BORDERS
from tvmflow.verify.tolerance import assert_close


def kernel(groups, width, low, high):
    """One axis, 4 items of 8 columns, reading a neighbour on each side between two limits."""

    @T.prim_func(s_tir=True)
    def main(x: T.Buffer((256,), "float32"), y: T.Buffer((256,), "float32")):
        block = T.launch_thread("blockIdx.x", groups)
        thread = T.launch_thread("threadIdx.x", 4)
        T.attr(thread, PEEL_BORDERS, 1)
        for v in range(8):
            y[block * 32 + thread * 8 + v] = T.float32(0)
            for q in range(3):
                y[block * 32 + thread * 8 + v] = y[block * 32 + thread * 8 + v] + T.if_then_else(
                    low <= block * 32 + thread * 8 + v + q
                    and block * 32 + thread * 8 + v + q < high,
                    x[block * 32 + thread * 8 + v + q - 1],
                    T.float32(0),
                )

    return PeelBorders(tvm.IRModule({"main": main}))["main"]


def choices_in(body):
    found = []

    def visit(call):
        if call.op.same_as(Op.get("prim.if_then_else")):
            found.append(call)

    tvm_ffi.structural_walk(body, (Call, visit))
    return len(found)


def branches(function):
    found = []
    tvm_ffi.structural_walk(function.body, (tirx.IfThenElse, found.append))
    return found


def test_groups_inside_have_a_body_without_tests():
    (branch,) = branches(kernel(8, 32, 1, 257))
    assert choices_in(branch.then_case) == 0
    assert choices_in(branch.else_case) == 1


def test_only_the_group_decides():
    (branch,) = branches(kernel(8, 32, 1, 257))
    used = []
    tvm_ffi.structural_walk(branch.condition, (tirx.Var, used.append))
    assert {var.name for var in used} == {"block"}


@pytest.mark.parametrize("low", [0, 1, 31, 33])
@pytest.mark.parametrize("high", [225, 226, 256, 257])
def test_a_group_is_inside_if_all_that_it_reads_is(low, high):
    """Each reads 34 neighbours: 4 items of 8 columns, and one more on each side."""
    (branch,) = branches(kernel(8, 32, low, high))
    found = []
    for group in range(8):

        def replace(var, group=group):
            return tirx.IntImm("int32", group) if var.name == "block" else var

        condition = tvm_ffi.structural_map(branch.condition, (tirx.Var, replace))
        found.append(Analyzer().can_prove(condition))
    assert found == [low <= group * 32 and group * 32 + 33 < high for group in range(8)]


def test_tests_that_never_fail_are_left_out():
    function = kernel(8, 32, -5, 300)
    assert not branches(function)
    assert choices_in(function.body) == 0


def test_a_picture_without_an_inside_keeps_one_body():
    function = kernel(2, 32, 1, 60)
    assert not branches(function)
    assert choices_in(function.body) == 1


@pytest.mark.opencl
@pytest.mark.parametrize("storage", ["texture", "buffer"])
@pytest.mark.parametrize(("channels", "groups"), [(6, 1), (6, 6)])
def test_both_bodies_are_right(channels, groups, storage):
    rng = np.random.default_rng(7)
    weight = rng.standard_normal((channels, channels // groups, 3, 3)).astype(np.float32)
    shape = (1, channels, 19, 130)
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 2, 1, 0], group=groups)
    model = model_of([node], {"x": shape}, "y", {"w": weight}, opset=18)
    x = rng.standard_normal(shape).astype(np.float32)
    (reference,) = expected(model, {"x": x})
    with tvmflow.compile(model, target="opencl", device="adreno", storage=storage) as module:
        knobs = [c["knobs"] for c in module.metadata["schedules"].values()]
        # Images have zeros around them.
        assert any(k.get("split_borders") for k in knobs) == (storage == "buffer")
        assert_close(module(x=x)["y"], reference)
