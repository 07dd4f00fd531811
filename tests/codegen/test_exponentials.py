"""Exponentials and sigmoids of vectors on CPUs: as exact as the C library's, and no calls of it."""

from __future__ import annotations

import numpy as np
import pytest
from operators import single

import tvmflow

#: Ordinary numbers, and the ends of what fp32 holds: subnormal results, infinities, NaN.
ORDINARY = np.concatenate([np.linspace(-104, 89, 40_001), np.linspace(-1, 1, 10_001)])
SPECIAL = [0.0, -0.0, 1e-30, -1e-30, 88.72, 88.73, -87.4, -103.9, -104, 1e30, -1e30]
INFINITE = [np.nan, np.inf, -np.inf]
REFERENCES = {"Exp": np.exp, "Sigmoid": lambda x: 1 / (1 + np.exp(-x))}


def computed(operator, x):
    with tvmflow.compile(single(operator, [x.shape]), target="llvm") as module:
        return module(x0=x)["y"]


@pytest.mark.parametrize("operator", REFERENCES)
def test_results_are_next_to_the_true_ones(operator):
    x = np.concatenate([ORDINARY, SPECIAL, INFINITE]).astype(np.float32)
    if operator == "Sigmoid":
        # Below, 1 + exp(-x) is infinite.
        x = x[~(x < -88)]
    found = computed(operator, x)
    with np.errstate(all="ignore"):
        true = REFERENCES[operator](x.astype(np.float64))
        rounded = true.astype(np.float32)
        units = np.abs(found - true) / np.spacing(np.abs(rounded)).astype(np.float64)
    finite = np.isfinite(rounded)
    np.testing.assert_array_equal(found[~finite], rounded[~finite])
    assert units[finite].max() < (1 if operator == "Exp" else 2.5)


def test_vectors_call_no_library(tmp_path):
    """The C library would compute one number a call."""
    path = tmp_path / "module.so"
    with tvmflow.compile(single("Exp", [(64, 64)]), target="llvm") as module:
        module.save(path)
    assert b"expf" not in path.read_bytes()
