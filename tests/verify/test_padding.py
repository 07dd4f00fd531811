"""`verify` with ``pad`` shows what padding an input to a compiled shape changes."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

import tvmflow
from tvmflow.errors import InputError

MEAN = """
<ir_version: 8, opset_import: ["" : 17]>
mean (float[1, 3, W] x) => (float[1, 3, W] y, float[1, 3, 1] mean)
{ y = Relu(x)
  mean = ReduceMean<axes=[2]>(x) }
"""


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "mean.onnx"
    onnx.save(onnx.parser.parse_model(MEAN), path)
    return path


@pytest.fixture
def module(model):
    return tvmflow.compile(model, target="llvm", shapes={"x": (1, 3, 9)})


@pytest.mark.onnxruntime
@pytest.mark.parametrize("pad", [0.0, 7.5, "edge"])
def test_the_report_says_what_padding_changes(model, module, pad):
    x = np.random.default_rng(0).standard_normal((1, 3, 5)).astype(np.float32)
    y, mean = tvmflow.verify(model, module, {"x": x}, pad=pad).outputs
    assert y.passed
    assert not mean.passed
    filler = x[..., -1] if pad == "edge" else np.float32(pad)
    error = np.abs((x.sum(2) + 4 * filler) / 9 - x.mean(2)).max()
    assert mean.max_abs_error == pytest.approx(error, rel=1e-4)
    assert tvmflow.verify(model, module, pad=pad).passed  # Nothing is padded.


@pytest.mark.onnxruntime
def test_larger_inputs_and_unknown_padding_are_refused(model, module):
    with pytest.raises(InputError, match=r"\[1, 3, 10\].*cannot be padded to \[1, 3, 9\]"):
        tvmflow.verify(model, module, {"x": np.ones((1, 3, 10), np.float32)}, pad=0)
    with pytest.raises(InputError, match=r"'mirror'.*edge"):
        tvmflow.verify(model, module, {"x": np.ones((1, 3, 8), np.float32)}, pad="mirror")
