"""Booleans in vectors of OpenCL C: masks choose, and are nothing else."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from support.onnx_models import expected, model_of
from tvm import tirx
from tvm.script import tirx as T

import tvmflow
from tvmflow.codegen.masks import BranchLanes, FoldChoices, MaskLanes, VerifyMasks
from tvmflow.errors import CompileError
from tvmflow.ir.passes import original_errors

OPENCL = {"kind": "opencl"}


@T.prim_func(s_tir=True)
def converts(x: T.Buffer((4,), "float32"), y: T.Buffer((4,), "float32")):
    for k in T.vectorized(4):
        y[k] = T.Cast("float32", x[k] > T.float32(0))


@T.prim_func(s_tir=True)
def keeps(x: T.Buffer((4,), "float32"), y: T.Buffer((4,), "bool")):
    for k in T.vectorized(4):
        y[k] = x[k] > T.float32(0)


@T.prim_func(s_tir=True)
def branches(x: T.Buffer((5,), "float32"), y: T.Buffer((4,), "float32")):
    for k in T.vectorized(4):
        y[k] = T.Select(x[4] > T.float32(0), x[k], T.float32(1))


@T.prim_func(s_tir=True)
def chooses(x: T.Buffer((5,), "float32"), y: T.Buffer((4,), "float32")):
    for k in T.vectorized(4):
        y[k] = T.Cast(
            "float32",
            T.if_then_else(x[4] > T.float32(0), x[k] > T.float32(1), x[k] > T.float32(2)),
        )


@T.prim_func(s_tir=True)
def joins(x: T.Buffer((5,), "float32"), y: T.Buffer((4,), "float32")):
    for k in T.vectorized(4):
        y[k] = T.Select(x[k] > T.float32(0) and x[4] > T.float32(0), x[k], T.float32(1))


@T.prim_func(s_tir=True)
def joins_bits(x: T.Buffer((5,), "float32"), y: T.Buffer((4,), "float32")):
    for k in T.vectorized(4):
        y[k] = T.Select((x[k] > T.float32(0)) | T.bool(False), x[k], T.float32(1))


def module(function, kind="opencl"):
    return tvm.IRModule({"main": function.with_attr("target", tvm.target.Target(kind))})


def run(function, kind="opencl"):
    return MaskLanes(module(function, kind))["main"].script()


def test_a_mask_as_a_number_is_a_choice():
    text = run(converts)
    assert "T.Select" in text
    assert "T.vectorized" in text
    assert "Cast" not in text


@pytest.mark.parametrize("function", [keeps, chooses, joins, joins_bits], ids=lambda f: f.__name__)
def test_what_keeps_booleans_is_computed_lane_by_lane(function):
    text = run(function)
    assert "T.unroll" in text
    assert "T.vectorized" not in text


def test_one_condition_for_all_lanes_is_a_branch():
    assert "T.if_then_else" in run(branches)


@T.prim_func(s_tir=True)
def knows(x: T.Buffer((4,), "float32"), y: T.Buffer((4,), "float32")):
    for k in T.vectorized(4):
        y[k] = T.Select(T.bool(True), x[k], T.float32(1))


@T.prim_func(s_tir=True)
def known(x: T.Buffer((4,), "float32"), y: T.Buffer((4,), "float32")):
    for k in T.vectorized(4):
        y[k] = x[k]


def test_a_side_that_is_known_is_taken():
    found, wanted = (tirx.transform.VectorizeLoop(True)(module(f)) for f in (knows, known))
    assert "Broadcast(T.bool(True), 4)" in found["main"].script()
    bodies = (mod["main"].body for mod in (FoldChoices(found), wanted))
    tvm.ir.assert_structural_equal(*bodies, map_free_vars=True)


def test_other_targets_are_left_alone():
    assert run(keeps, "llvm") == module(keeps, "llvm")["main"].script()


@pytest.mark.parametrize(
    "function",
    [converts, keeps, branches, chooses, joins, joins_bits],
    ids=lambda f: f.__name__,
)
def test_what_is_left_is_refused(function):
    vectors = tirx.transform.VectorizeLoop(True)(module(function))
    with pytest.raises(CompileError, match="booleans"), original_errors():
        VerifyMasks(vectors)
    VerifyMasks(tirx.transform.VectorizeLoop(True)(MaskLanes(module(function))))


def masked(nodes):
    """Return a model of ``x > t`` and ``x < b``, ``nodes`` that read them, and a convolution."""
    rng = np.random.default_rng(2)
    constants = {
        "t": np.float32(0.1),
        "b": rng.standard_normal((1, 17, 6, 7)).astype(np.float32),
        "w": (rng.standard_normal((9, 17, 3, 3)) * 0.2).astype(np.float32),
    }
    convolution = "y = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(v, w)"
    text = f"g = Greater(x, t) l = Less(x, b) {nodes} {convolution}"
    return model_of(text, {"x": (1, 17, 6, 7)}, "y g", constants)


CASES = {
    "where": "v = Where(g, x, b)",
    "cast": "v = Cast<to = 1>(g)",
    "xor": "k = Xor(g, l) v = Where(k, b, x)",
    "and_not": "n = Not(l) k = And(g, n) v = Cast<to = 1>(k)",
}
PLACES = {
    "cpu": {"device": "cpu"},
    "textures": {"device": "adreno", "storage": "texture"},
    "half": {"device": "mali", "dtype": "fp16", "accumulate": "fp32"},
}


@pytest.mark.opencl
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("case", CASES)
def test_masks_before_a_convolution(case, place):
    model = masked(CASES[case])
    x = np.random.default_rng(1).standard_normal((1, 17, 6, 7)).astype(np.float32)
    right, kept = expected(model, {"x": x})
    with tvmflow.compile(model, target="opencl", **PLACES[place]) as compiled:
        outputs = compiled(x=x)
        # Halves compare as they are stored: an element within rounding of a limit may differ.
        error = 2e-2 if place == "half" else 1e-5
        np.testing.assert_allclose(outputs["y"], right, atol=error * abs(right).max())
        assert (outputs["g"] == kept).all()


def test_one_condition_for_all_lanes_is_a_branch_on_cuda():
    """Which TVM's code has no vector for; masks stay, and other targets are left alone."""
    text = BranchLanes(module(branches, "cuda"))["main"].script()
    assert "T.if_then_else" in text
    assert "T.vectorized" in text
    for function, kind in ((branches, "llvm"), (converts, "cuda")):
        before = module(function, kind)
        tvm.ir.assert_structural_equal(BranchLanes(before), before)
