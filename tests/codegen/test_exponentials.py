"""Exponentials of vectors are right on CPUs, and are no calls for each of their lanes."""

from __future__ import annotations

import math
from contextlib import closing
from itertools import pairwise

import numpy as np
import pytest
import tvm
from onnx import helper
from support.onnx_models import model_of
from tvm import s_tir, te, tirx

import tvmflow
from tvmflow.devices.target import TargetSpec, resolve
from tvmflow.tuning.building import ENTRY, lower

EDGES = [np.nan, np.inf, -np.inf, 0, -0.0, 88.72283, 88.72284, -103.97, -103.98, 3e38, -3e38, 1e-45]


def library(spec: TargetSpec, operator, numbers: int, lanes: int, dtype: str = "float32"):
    """A function of so many numbers, in vectors of so many lanes."""
    x = te.placeholder((numbers,), dtype, name="x")
    y = te.compute((numbers,), lambda i: operator(x[i]), name="y")
    sch = s_tir.Schedule(te.create_prim_func([x, y]))
    (loop,) = sch.get_loops(sch.get_sblock("y"))
    if lanes > 1:
        sch.vectorize(sch.split(loop, [None, lanes])[1])
    with spec.tvm_target:
        return lower(sch.mod["main"], spec)


def run(operator, x: np.ndarray, lanes: int) -> np.ndarray:
    built = library(resolve("llvm"), operator, x.size, lanes)
    y = tvm.runtime.empty(x.shape, "float32")
    tvm.runtime.Executable(built).jit()[ENTRY](tvm.runtime.tensor(x), y)
    return y.numpy()


@pytest.mark.parametrize("lanes", [4, 16])
def test_exponentials_are_right_to_a_unit_in_the_last_place(lanes):
    """Also where results are subnormal, or infinite."""
    random = np.random.default_rng(1)
    parts = [
        random.uniform(*ends, 1 << 18) for ends in ((-1, 1), (-87, 88.7), (-105, -87), (88, 90))
    ]
    x = np.concatenate([*parts, EDGES]).astype(np.float32)
    x = np.pad(x, (0, -x.size % lanes))
    with np.errstate(all="ignore"):
        exact = np.exp(x.astype(np.float64))
        rounded = exact.astype(np.float32)
    found = run(tirx.exp, x, lanes)
    whole = np.isfinite(rounded)
    np.testing.assert_array_equal(found[~whole], rounded[~whole])
    units = np.abs(found[whole] - exact[whole]) / np.spacing(rounded[whole])
    assert units.max() < 1.1


def test_sigmoids_of_vectors():
    x = np.concatenate([np.linspace(-80, 100, 1000), EDGES, np.zeros(4)]).astype(np.float32)
    with np.errstate(all="ignore"):
        exact = 1 / (1 + np.exp(-x.astype(np.float64)))
    np.testing.assert_allclose(run(tirx.sigmoid, x, 8), exact, rtol=4e-7, atol=1e-38)


@pytest.mark.parametrize("host", [None, "linux-x64", "linux-arm64", "android-arm64"])
@pytest.mark.parametrize(
    ("lanes", "dtype", "calls"),
    [(16, "float32", False), (1, "float32", True), (8, "float64", True)],
)
def test_only_single_numbers_and_doubles_are_calls(host, lanes, dtype, calls):
    built = library(resolve("llvm", host=host), tirx.exp, 64, lanes, dtype)
    name = {"float32": "expf", "float64": "exp"}[dtype]
    words = built.inspect_source("s").replace("@PLT", "").split()
    assert (name in words) == calls


CHAINS = {
    "exponentials": ["Exp"] * 3,
    "mish": ["Mish", "Mish"],
    "hyperbolic": ["Tanh", "Atanh", "Tanh", "Tanh"],
    "errors": ["Erf", "Erf", "Erf"],
    "sigmoids": ["Sigmoid", "Softplus", "Sigmoid", "Elu"],
}


@pytest.mark.parametrize("shape", [(4, 5), (3, 32)], ids=str)
@pytest.mark.parametrize("name", CHAINS)
def test_functions_of_functions(name, shape, rng):
    """TVM's analysis took minutes to put what each name stands for in its place."""
    names = ["x", *(f"t{number}" for number in range(1, len(CHAINS[name]) + 1))]
    nodes = [
        helper.make_node(op_type, [here], [there])
        for op_type, (here, there) in zip(CHAINS[name], pairwise(names), strict=True)
    ]
    model = model_of(nodes, {"x": shape}, {names[-1]: shape}, opset=18)
    x = (rng.standard_normal(shape) * 0.4).astype(np.float32)
    functions = {
        "Exp": np.exp, "Tanh": np.tanh, "Atanh": np.arctanh,
        "Mish": lambda a: a * np.tanh(np.log1p(np.exp(a))),
        "Sigmoid": lambda a: 1 / (1 + np.exp(-a)), "Softplus": lambda a: np.log1p(np.exp(a)),
        "Erf": np.vectorize(math.erf), "Elu": lambda a: np.where(a > 0, a, np.expm1(a)),
    }  # fmt: skip
    wanted = x.astype(np.float64)
    for op_type in CHAINS[name]:
        wanted = functions[op_type](wanted)
    with closing(tvmflow.compile(model, target="llvm")) as module:
        (found,) = module(x)
    np.testing.assert_allclose(found, wanted, rtol=2e-5)
