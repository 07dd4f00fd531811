"""The error function is one of whole vectors, and as exact as a call for each number."""

from __future__ import annotations

from contextlib import closing
from math import erf

import numpy as np
import pytest
import tvm
from support.onnx_models import model_of
from tvm import tirx

import tvmflow
from tvmflow.codegen.error_function import ERF
from tvmflow.codegen.llvm_passes import StoreArguments, WriteExponentials
from tvmflow.devices.target import resolve
from tvmflow.ir.expressions import nodes_in

TARGETS = [
    pytest.param("llvm", id="llvm"),
    pytest.param("opencl", id="opencl", marks=pytest.mark.opencl),
]
EDGES = np.array([np.nan, np.inf, -np.inf, 0, -0.0, 1e-45, 1, -1, 3.95, -3.95, 20, -3e38], "f4")


def network(op_type: str, shape: tuple[int, ...], dtype: str = "float32"):
    kind = (shape, dtype)
    return model_of(f"y = {op_type}(x)", {"x": kind}, {"y": kind}, opset=20, ir_version=10)


def exact(x: np.ndarray) -> np.ndarray:
    return np.vectorize(erf)(x.astype(np.float64))


def numbers(rng, count: int) -> np.ndarray:
    small = 10.0 ** rng.uniform(-40, 0, count // 4)
    x = np.concatenate([EDGES, small, -small, rng.uniform(-5, 5, count)])
    return x[:count].astype(np.float32)


@pytest.mark.parametrize("shape", [(3, 5, 7), (64, 1024)], ids=str)  # numbers alone, and vectors
@pytest.mark.parametrize("target", TARGETS)
def test_error_function_is_right_to_two_units_in_the_last_place(target, shape, rng):
    x = numbers(rng, int(np.prod(shape)))
    with closing(tvmflow.compile(network("Erf", shape), target=target)) as module:
        (found,) = module(x.reshape(shape))
    found, wanted = found.ravel(), exact(x)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(x))
    np.testing.assert_array_equal(np.signbit(found[1:]), np.signbit(x[1:]))
    units = np.abs(found - wanted)[1:] / np.spacing(np.abs(wanted[1:]).astype(np.float32))
    # Subnormal numbers may be taken for 0.
    assert units[np.abs(x[1:]) > 1e-37].max() < 2


@pytest.mark.parametrize("target", TARGETS)
def test_half_precision_goes_by_single(target, rng):
    with np.errstate(over="ignore"):
        x = numbers(rng, 4096).astype(np.float16)
    model = network("Erf", (4, 1024), "float16")
    with closing(tvmflow.compile(model, target=target)) as module:
        (found,) = module(x.reshape(4, 1024))
    np.testing.assert_allclose(found.ravel(), exact(x), rtol=2**-11, atol=2**-25)


def test_double_precision_is_that(rng):
    x = rng.uniform(-5, 5, (4, 1024))
    with closing(tvmflow.compile(network("Erf", x.shape, "float64"))) as module:
        np.testing.assert_allclose(module(x)[0], exact(x), rtol=1e-14)


@pytest.mark.parametrize("preset", ["cpu", "adreno", "mali", "nvidia"])
def test_kernels_compute_whole_vectors(preset):
    module = tvmflow.compile(network("Gelu", (64, 1024)), target="opencl", device=preset)
    with closing(module):
        source = "".join(module.device_sources())
    lanes = 16 if preset == "cpu" else 4
    assert f"static inline float{lanes} tvmflow_erf_{lanes}(" in source
    assert " erf(" not in source


def test_each_part_of_an_error_function_is_stored_on_llvm():
    """TVM's analysis puts what each name stands for in its place: 16 s for 24 sums with GELU."""
    x = tirx.decl_buffer((16,), "float32", "x")
    lanes = tirx.Ramp(0, 1, 16)
    value = tirx.call_intrin("float32x16", ERF, tirx.BufferLoad(x, [lanes]))
    function = tirx.PrimFunc([x], tirx.BufferStore(x, value, [lanes]))
    with resolve("llvm").tvm_target as target:
        mod = tvm.IRModule({"main": function.with_attr("target", target)})
        stored = WriteExponentials(StoreArguments(mod))["main"]
    stores = nodes_in(stored.body, tirx.BufferStore)
    assert len(stores) == 6
    # No name within what another name stands for.
    assert max(len(nodes_in(store.value, tirx.Let)) for store in stores) <= 7
    assert sum(len(nodes_in(store.value, tirx.Let)) > 0 for store in stores) == 1
