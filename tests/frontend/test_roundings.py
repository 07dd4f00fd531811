"""Sums of floats are rounded as often as the network has it, where that can be seen."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

import tvmflow

WAYS = [
    pytest.param({"target": "llvm"}, id="llvm"),
    pytest.param({"target": "opencl"}, id="cpu", marks=pytest.mark.opencl),
    pytest.param(
        {"target": "opencl", "device": "adreno", "storage": "texture"},
        id="textures",
        marks=pytest.mark.opencl,
    ),
]


def run(body: str, x: np.ndarray, options: dict[str, str]) -> np.ndarray:
    model = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["" : 18]>\n'
        f"g (float[{x.size}] x) => (float[{x.size}] y) {{ {body} }}"
    )
    with tvmflow.compile(model, **options) as module:
        return np.asarray(module({"x": x})["y"])


@pytest.mark.parametrize("options", WAYS)
@pytest.mark.parametrize("order", ["e, magic", "magic, e"])
def test_rounding_by_adding_a_large_number(options, order):
    """Users write x + 1.5·2^23 - 1.5·2^23 for the nearest integer."""
    x = np.random.default_rng(0).uniform(-100, 100, 37).astype(np.float32)
    body = f"magic = Constant<value_float=12582912.0>() e = Add(x, magic) y = Sub({order})"
    sign = 1 if order.startswith("e") else -1
    np.testing.assert_array_equal(run(body, x, options), sign * np.round(x))


@pytest.mark.parametrize("options", WAYS)
def test_softplus_of_negative_numbers(options):
    """log(1 + u) of a small u: 1 + u has little of it."""
    x = -np.geomspace(1e-3, 80, 400).astype(np.float32)
    exact = np.log1p(np.exp(x.astype(np.float64)))
    np.testing.assert_allclose(run("y = Softplus(x)", x, options), exact, rtol=2e-6)
