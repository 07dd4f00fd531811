"""Checks of models with ONNX Runtime's own operators against it, on the targets of phones."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import pytest
from onnx import helper
from support.onnx_models import expected

import tvmflow
from tvmflow.verify.tolerance import OPERATOR, assert_close

TARGETS = [
    pytest.param("llvm", "cpu", id="llvm"),
    pytest.param("opencl", "cpu", id="opencl", marks=pytest.mark.opencl),
    pytest.param("opencl", "adreno", id="adreno", marks=pytest.mark.opencl),
]


def draw(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    """Draw values for a model's inputs: normally distributed, or 0 and 1."""
    rng, feeds = np.random.default_rng(7), {}
    for value in model.graph.input:
        kind = value.type.tensor_type
        shape = [d.dim_value for d in kind.shape.dim]
        dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
        drawn = rng.standard_normal(shape) if dtype.kind == "f" else rng.integers(0, 2, shape)
        feeds[value.name] = drawn.astype(dtype)
    return feeds


def check(
    model: onnx.ModelProto,
    given: Mapping[str, np.ndarray] | None = None,
    *,
    target: str = "llvm",
    device: str = "cpu",
) -> None:
    """Compare all results of a model with ONNX Runtime's, by the tolerance of one operator.

    ``given`` has values for some inputs; the others are drawn.
    """
    feeds = draw(model) | dict(given or {})
    names = [value.name for value in model.graph.output]
    wanted = dict(zip(names, expected(model, feeds, optimized=False), strict=True))
    assert any(len(np.unique(array)) > 4 for array in wanted.values())
    with tvmflow.compile(model, target=target, device=device) as module:
        found = module(feeds)
    for name in names:
        assert_close(found[name], wanted[name], OPERATOR, name)
