"""Maxima and minima that NaN goes through: as NumPy's, for numbers and vectors, on all targets."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import s_tir, te, tirx

import tvmflow.codegen.opencl_source  # noqa: F401 (functions that kernels call)
from tvmflow.codegen.nan_propagation import PropagateNaN
from tvmflow.codegen.tir_pipeline import TIR_PIPELINE

SPECIAL = [np.nan, -np.nan, np.inf, -np.inf, 0.0, 1.5, -2.0, 8.0]
PAIRS = np.array(list(itertools.product(SPECIAL, SPECIAL)))
OPERATORS = {"max": (tirx.max, np.maximum), "min": (tirx.min, np.minimum)}


def function(body, dtype, inputs=2):
    """A primary function of one element each."""
    tensors = [te.placeholder((len(PAIRS),), dtype, f"x{i}") for i in range(inputs)]
    result = te.compute((len(PAIRS),), lambda i: body(*[x[i] for x in tensors]), name="y")
    return te.create_prim_func([*tensors, result]).with_attr("global_symbol", "main")


def run(primary, target, lanes, arrays):
    sch = s_tir.Schedule(primary)
    block = sch.get_sblock("y")
    outer, inner = sch.split(sch.get_loops(block)[0], [None, lanes])
    if lanes > 1:
        sch.vectorize(inner)
    if target != "llvm":
        sch.bind(outer, "blockIdx.x")
    built = tvm.compile(
        sch.mod, target=tvm.target.Target(target, host="llvm"), tir_pipeline=TIR_PIPELINE
    )
    device = tvm.cpu() if target == "llvm" else tvm.device(target)
    result = tvm.runtime.tensor(np.zeros_like(arrays[0]), device)
    built["main"](*[tvm.runtime.tensor(array, device) for array in arrays], result)
    return result.numpy()


@pytest.mark.parametrize("lanes", [1, 4, 16])
@pytest.mark.parametrize(
    ("target", "dtype"),
    [
        ("llvm", "float32"),
        ("llvm", "float64"),
        ("llvm", "float16"),
        pytest.param("opencl", "float32", marks=pytest.mark.opencl),
        pytest.param("opencl", "float64", marks=pytest.mark.opencl),
    ],
)
@pytest.mark.parametrize("name", OPERATORS)
def test_two_tensors(name, target, dtype, lanes):
    ours, numpys = OPERATORS[name]
    arrays = [np.ascontiguousarray(column).astype(dtype) for column in PAIRS.T]
    np.testing.assert_array_equal(
        run(function(ours, dtype), target, lanes, arrays), numpys(*arrays)
    )


@pytest.mark.parametrize("lanes", [1, 16])
@pytest.mark.parametrize("target", ["llvm", pytest.param("opencl", marks=pytest.mark.opencl)])
@pytest.mark.parametrize("limit_first", [False, True])
def test_limits(limit_first, target, lanes):
    def limited(x):
        low, high = (tirx.const(limit, "float32") for limit in (-1, 2))
        if limit_first:
            return tirx.min(high, tirx.max(low, x))
        return tirx.min(tirx.max(x, low), high)

    x = PAIRS[:, 0].astype(np.float32)
    found = run(function(limited, "float32", 1), target, lanes, [x])
    np.testing.assert_array_equal(found, np.clip(x, -1, 2))


@pytest.mark.parametrize("lanes", [1, 16])
@pytest.mark.parametrize("target", ["llvm", pytest.param("opencl", marks=pytest.mark.opencl)])
@pytest.mark.parametrize("rounded", [False, True])
def test_what_becomes_an_integer_has_its_lower_limit_for_nan(rounded, target, lanes):
    def converted(x):
        within = tirx.max(tirx.min(x, tirx.const(9, "float32")), tirx.const(-3, "float32"))
        whole = tirx.Cast("int32", tirx.nearbyint(within) if rounded else tirx.floor(within))
        return tirx.Cast("float32", whole)

    x = PAIRS[:, 0].astype(np.float32)
    round_ = np.rint if rounded else np.floor
    wanted = np.where(np.isnan(x), -3, round_(np.clip(x, -3, 9)))
    found = run(function(converted, "float32", 1), target, lanes, [x])
    np.testing.assert_array_equal(found, wanted)


def rewritten(body, dtype, inputs=2):
    """Kinds of the nodes that the pass leaves, in a function for LLVM."""
    primary = function(body, dtype, inputs)
    primary = primary.with_attr("target", tvm.target.Target("llvm"))
    kinds = []
    body = PropagateNaN(tvm.IRModule({"main": primary}))["main"].body
    kinds_of_interest = (tirx.Max, tirx.Select, tirx.EQ)
    tvm_ffi.structural_walk(
        body, [(kind, lambda node: kinds.append(type(node))) for kind in kinds_of_interest]
    )
    return kinds


def test_a_limit_costs_one_choice():
    """And the limit comes first: TVM has LLVM choose the second operand where one is NaN."""
    found = rewritten(lambda x: tirx.max(x, tirx.const(0, "float32")), "float32", 1)
    assert found == [tirx.Max]
    whole = rewritten(
        lambda x, z: tirx.max(x, tirx.Cast("float32", tirx.Cast("int32", z))), "float32"
    )
    assert whole == [tirx.Max]
    assert rewritten(tirx.max, "float32").count(tirx.EQ) == 1


def test_integers_stay():
    assert rewritten(tirx.max, "int32") == [tirx.Max]
