"""Powers of vectors of doubles, which PoCL mixes up where one base is negative or zero."""

from __future__ import annotations

import numpy as np
import pytest
from support.onnx_models import model_of
from support.operators import single

import tvmflow


@pytest.mark.parametrize("lanes", [3, 8, 16])
@pytest.mark.parametrize("target", ["llvm", pytest.param("opencl", marks=pytest.mark.opencl)])
def test_whole_powers_of_whole_numbers(target, lanes):
    """Integers to the power of integers are computed in float64."""
    rng = np.random.default_rng(lanes)
    x, y = rng.integers(-9, 10, (100, lanes)), rng.integers(0, 6, (100, lanes))
    kind = (x.shape, "int64")
    model = model_of("z = Pow(x, y)", {"x": kind, "y": kind}, {"z": kind}, opset=15)
    with tvmflow.compile(model, target=target) as module:
        np.testing.assert_array_equal(module(x=x, y=y)["z"], x**y)


@pytest.mark.opencl
def test_other_vectors_keep_their_function(tmp_path):
    model = single("Pow", [(64, 16), (64, 16)])
    with tvmflow.compile(model, target="opencl", dump_ir=tmp_path):
        (path,) = tmp_path.glob("*_build.*.opencl")
    assert "tvmflow_pow" not in path.read_text()
