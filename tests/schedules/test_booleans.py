"""Booleans on OpenCL: vectors of them are never right, so such blocks stay scalar."""

from __future__ import annotations

import numpy as np
import pytest
from support.onnx_models import expected, model_of
from support.operators import feeds_for

import tvmflow

CASES = {
    "compare": "y = Greater(x, z)",
    "compare_then_not": "g = Greater(x, z) y = Not(g)",
    "and": "g = Greater(x, z) l = Less(x, half) y = And(g, l)",
    "is_nan": "d = Sub(x, z) s = Sqrt(d) y = IsNaN(s)",
    "cast": "g = Greater(x, z) y = Cast<to = 1>(g)",
    "where": "g = Greater(x, z) y = Where(g, x, z)",
}


@pytest.mark.parametrize("target", ["llvm", pytest.param("opencl", marks=pytest.mark.opencl)])
@pytest.mark.parametrize("shape", [(3, 8), (2, 3, 16), (5, 4)], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_booleans(case, shape, target):
    constants = {"half": np.float32(0.5)} if case == "and" else {}
    model = model_of(CASES[case], {"x": shape, "z": shape}, "y", constants)
    feeds = feeds_for(model)
    (reference,) = expected(model, feeds)
    # Both values must occur: an output that is constant would prove little.
    assert len(np.unique(reference)) > 1
    with tvmflow.compile(model, target=target, device="cpu") as module:
        np.testing.assert_array_equal(module(**feeds)["y"], reference)
