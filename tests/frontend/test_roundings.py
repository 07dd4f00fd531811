"""Sums of floats are rounded as often as in the network, if that matters."""

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


def run(body: str, x: np.ndarray, options: dict[str, str], kind: str = "float") -> np.ndarray:
    model = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["" : 18]>\n'
        f"g ({kind}[{x.size}] x) => ({kind}[{x.size}] y) {{ {body} }}"
    )
    with tvmflow.compile(model, **options) as module:
        return np.asarray(module({"x": x})["y"])


@pytest.mark.parametrize("options", WAYS)
@pytest.mark.parametrize("order", ["e, magic", "magic, e"])
def test_rounding_by_adding_a_large_number(options, order):
    """The nearest integer may be computed as x + 1.5·2^23 - 1.5·2^23."""
    x = np.random.default_rng(0).uniform(-100, 100, 37).astype(np.float32)
    body = f"magic = Constant<value_float=12582912.0>() e = Add(x, magic) y = Sub({order})"
    sign = 1 if order.startswith("e") else -1
    np.testing.assert_array_equal(run(body, x, options), sign * np.round(x))


ODD = {
    "Tanh": np.tanh, "Sinh": np.sinh, "Asinh": np.arcsinh, "Atanh": np.arctanh,
    "Asin": np.arcsin, "Atan": np.arctan, "Sin": np.sin, "Tan": np.tan,
}  # fmt: skip


@pytest.mark.parametrize("options", WAYS)
@pytest.mark.parametrize("dtype", ["float", "double"])
@pytest.mark.parametrize("operator", ODD)
def test_small_numbers_keep_their_digits(operator, dtype, options):
    """Formulas with exponentials and logarithms near one would lose all digits."""
    x = np.concatenate([np.geomspace(1e-30, 0.99, 300), -np.geomspace(1e-30, 0.99, 37), [0, -0.0]])
    x = x.astype({"float": np.float32, "double": np.float64}[dtype])
    exact = ODD[operator](x.astype(np.longdouble)).astype(x.dtype)
    found = run(f"y = {operator}(x)", x, options, dtype)
    np.testing.assert_allclose(found, exact, rtol=16 * np.finfo(x.dtype).eps)
    np.testing.assert_array_equal(np.signbit(found), np.signbit(exact))


@pytest.mark.parametrize("options", WAYS)
@pytest.mark.parametrize("operator", ["Tanh", "Atanh"])
def test_the_ends_of_hyperbolic_functions(operator, options):
    x = np.array([-np.inf, -300, -1, 1, 40, np.inf, np.nan], np.float32)
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(
            run(f"y = {operator}(x)", x, options), ODD[operator](x), rtol=2e-6
        )


@pytest.mark.parametrize("options", WAYS)
def test_softplus_of_negative_numbers(options):
    """log(1 + u) is accurate for a small u, of which 1 + u loses most digits."""
    x = -np.geomspace(1e-3, 80, 400).astype(np.float32)
    exact = np.log1p(np.exp(x.astype(np.float64)))
    np.testing.assert_allclose(run("y = Softplus(x)", x, options), exact, rtol=2e-6)
