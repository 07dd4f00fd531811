"""Report of `verify` on NaN and infinities: their number, the first place, and the node."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper
from support.operators import build

import tvmflow
from tvmflow.verify.compare import disagreement, origin, verify

REFERENCE = np.array([[1.0, np.nan, np.inf], [2.0, 3.0, -np.inf]], np.float32)


def test_agreement_is_not_mentioned():
    assert disagreement("y", REFERENCE.copy(), REFERENCE) is None
    assert disagreement("y", np.zeros(3, np.int64), np.zeros(3, np.int64)) is None


@pytest.mark.parametrize(
    ("place", "value", "expected"),
    [
        ((1, 0), np.nan, "NaN or infinity at 1 place where the reference has numbers, first at"),
        ((0, 1), 0.5, "numbers at 1 place where that has NaN or infinity, first at [0, 1]: 0.5"),
        ((0, 2), -np.inf, "another of NaN, inf and -inf at 1 place, first at [0, 2]: -inf"),
    ],
)
def test_disagreement_has_number_and_place(place, value, expected):
    got = REFERENCE.copy()
    got[place] = value
    assert expected in disagreement("y", got, REFERENCE)


@pytest.fixture
def model(tmp_path):
    """Write a model of products, the first of which may overflow 16 bits, and a root."""
    nodes = [
        helper.make_node("Mul", ["x", "k"], ["product"], "first"),
        helper.make_node("Sqrt", ["product"], ["root"], "second"),
        helper.make_node("Relu", ["root"], ["y"], "third"),
    ]
    path = tmp_path / "model.onnx"
    onnx.save(build(nodes, {"x": (2, 3)}, ["y"], {"k": np.float32(1000)}), path)
    return path


@pytest.mark.onnxruntime
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (-1.0, "NaN is first seen in the result 'root' of the node 'second' (Sqrt)"),
        (3e38, "infinity is first seen in the result 'product' of the node 'first' (Mul)"),
        (99.0, "No tensor in the reference has NaN or infinity"),
        (np.nan, "Input 'x' has NaN or infinity"),
    ],
)
def test_origin_is_the_first_node(model, value, expected):
    x = np.full((2, 3), value, np.float32)
    assert expected in origin(model, {"x": x})


@pytest.mark.onnxruntime
@pytest.mark.opencl
def test_overflow_in_16_bits_shows_and_is_named(tmp_path, rng):
    """An inner 2e5 reaches the output as NaN or infinity, not as 0."""
    weight = np.abs(rng.standard_normal((16, 16, 3, 3), dtype=np.float32))
    nodes = [
        helper.make_node("Conv", ["x", "a"], ["c"], "first", pads=[1] * 4),
        helper.make_node("Relu", ["c"], ["r"], "relu"),
        helper.make_node("Conv", ["r", "b"], ["y"], "second", pads=[1] * 4),
    ]
    network = build(nodes, {"x": (1, 16, 6, 6)}, ["y"], {"a": weight, "b": weight - 0.5})
    path = tmp_path / "model.onnx"
    onnx.save(network, path)
    x = np.ones((1, 16, 6, 6), np.float32)
    x[0, :, 2, 3] = 1e4
    with tvmflow.compile(
        path, target="opencl", device="mali", dtype="fp16", accumulate="fp32"
    ) as module:
        report = verify(path, module, {"x": x})
    assert not report.passed
    (place,), (source,) = report.not_finite, report.lost
    assert "NaN or infinity at" in place
    # The convolution's own result is not stored: its kernel includes the activation.
    assert "in the result 'r' of the node 'relu' (Relu)." in source
    with pytest.raises(tvmflow.errors.VerificationError, match=r"infinite in 16 bits") as raised:
        report.raise_if_failed()
    assert "`calibrate`" in raised.value.remedy
