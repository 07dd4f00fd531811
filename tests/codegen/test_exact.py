"""Quotients, products and sums that are rounded once, against NumPy and exact arithmetic."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import onnx
import pytest
import tvm
from support.onnx_models import model_of
from tvm import s_tir, te, tirx

import tvmflow
import tvmflow.compiler.generate  # registers what writes OpenCL C
from tvmflow.codegen import rounding
from tvmflow.codegen.tir_pipeline import TIR_PIPELINE

TARGETS = [
    pytest.param("llvm", id="llvm"),
    pytest.param("opencl", id="opencl", marks=pytest.mark.opencl),
]
LANES = (1, 2, 4, 8, 16)


def run(target, lanes, element, *arrays):
    """``element`` of every number of the arrays, in vectors of ``lanes``."""
    extent = arrays[0].size
    tensors = [te.placeholder((extent,), "float32", name=f"x{i}") for i in range(len(arrays))]
    result = te.compute((extent,), lambda i: element(*(t[i] for t in tensors)), name="y")
    schedule = s_tir.Schedule(te.create_prim_func([*tensors, result]))
    (loop,) = schedule.get_loops(schedule.get_sblock("y"))
    outer, inner = schedule.split(loop, [None, lanes])
    if target == "opencl":
        outer, item = schedule.split(outer, [None, 64])
        schedule.bind(outer, "blockIdx.x")
        schedule.bind(item, "threadIdx.x")
    if lanes > 1:
        schedule.vectorize(inner)
    with tvm.target.Target(target):
        built = tvm.tirx.build(schedule.mod, tvm.target.Target(target), pipeline=TIR_PIPELINE)
    device = tvm.device("cpu" if target == "llvm" else target)
    values = [tvm.runtime.tensor(a.astype(np.float32), device) for a in arrays]
    out = tvm.runtime.empty((extent,), "float32", device)
    built["main"](*values, out)
    return out.numpy()


def quotient(x, y):
    return tirx.call_intrin("float32", "tirx.tvmflow_quotient", x, y)


def product(x, y):
    return tirx.call_intrin("float32", "tirx.tvmflow_product", x, y)


def near_steps(scales, steps, count):
    """Numbers whose quotients by the scales are a half, or a little less or more."""
    rng = np.random.default_rng(1)
    scale = rng.choice(scales, count).astype(np.float32)
    step = rng.integers(-steps, steps, count) + 0.5
    x = (step * scale.astype(np.float64)).astype(np.float32)
    moved = x.view(np.int32) + rng.integers(-3, 4, count, dtype=np.int32)
    return moved.view(np.float32), scale


def scales(low, high, count=4096):
    rng = np.random.default_rng(2)
    return np.exp2(rng.uniform(np.log2(low), np.log2(high), count)).astype(np.float32)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("lanes", LANES)
def test_quotients_are_rounded_correctly(target, lanes):
    count = 1 << 18
    near, near_scale = near_steps(scales(1e-9, 1e3), 300, count)
    wide, wide_scale = near_steps(scales(1e-3, 1), 70_000, count)
    rng = np.random.default_rng(3)
    x = np.concatenate([near, wide, rng.standard_normal(count)]).astype(np.float32)
    y = np.concatenate([near_scale, wide_scale, -scales(0.5, 2, count)])
    with np.errstate(all="ignore"):
        wanted = x / y
    # Smaller ones are zero to whoever rounds them.
    large = np.abs(wanted) > 2.0**-29
    found = run(target, lanes, quotient, x, y)
    np.testing.assert_array_equal(found[large], wanted[large])
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-30)


@pytest.mark.opencl
def test_quotients_are_rounded_correctly_where_fused_sums_are_slow(monkeypatch):
    monkeypatch.setattr(rounding, "OPENCL", f"#undef FP_FAST_FMAF\n{rounding.OPENCL}")
    x, y = near_steps(scales(1e-9, 1e3), 300, 1 << 18)
    np.testing.assert_array_equal(run("opencl", 4, quotient, x, y), x / y)


@pytest.mark.parametrize("target", TARGETS)
def test_quotients_of_what_is_not_finite_or_too_large(target):
    x = np.resize(np.float32([np.inf, -np.inf, np.nan, 3e38, -3e38, 0, -0.0, 1e-44]), 1024)
    found = run(target, 4, quotient, x, np.full(1024, 0.02, np.float32))
    wanted = np.float32([np.inf, -np.inf, np.nan, np.inf, -np.inf, 0, 0])
    np.testing.assert_array_equal(found[:7], wanted)
    assert abs(found[7]) < 1e-30


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("lanes", LANES)
def test_products_are_rounded_before_they_are_added(target, lanes):
    rng = np.random.default_rng(4)
    x, y = rng.standard_normal((2, 1 << 14)).astype(np.float32)
    # The product minus the rounded product is zero, unless multiplication and addition are fused.
    z = -(x * y)
    found = run(target, lanes, lambda a, b, c: product(a, b) + c, x, y, z)
    np.testing.assert_array_equal(found, np.zeros_like(z))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("lanes", LANES)
def test_sums_of_products_are_rounded_once(target, lanes):
    rng = np.random.default_rng(5)
    x, y, noise = rng.standard_normal((3, 1024)).astype(np.float32)
    z = (-(x * y) * (1 + noise * 1e-4)).astype(np.float32)

    def fused(a, b, c):
        return tirx.call_intrin("float32", "tirx.tvmflow_multiply_add", a, b, c)

    exact = [
        Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
        for a, b, c in zip(x, y, z, strict=True)
    ]
    # The terms have 48 and 24 bits and similar exponents: a double holds the sum.
    wanted = np.array([float(value) for value in exact]).astype(np.float32)
    np.testing.assert_array_equal(run(target, lanes, fused, x, y, z), wanted)


@pytest.mark.opencl
def test_integers_that_are_divided_as_floats_are_divided_exactly(tmp_path):
    """Places are then rounded down; a GPU's own division may be off by 2.5 units."""
    x, y = np.arange(15120, dtype=np.int64), np.float32(80)
    path = tmp_path / "places.onnx"
    nodes = "float = Cast<to = 1>(x) quotient = Div(float, y) floor = Floor(quotient)"
    inputs = {"x": (x.shape, "int64"), "y": ()}
    onnx.save(model_of(nodes, inputs, {"floor": x.shape}), path)
    with tvmflow.compile(path, target="opencl") as module:
        np.testing.assert_array_equal(module({"x": x, "y": y})["floor"], x // 80)
        (source,) = module.device_sources()
        _, _, kernels = source.partition("__kernel")
        assert "tvmflow_exact_quotient" in kernels
