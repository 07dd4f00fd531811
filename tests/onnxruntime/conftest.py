"""Networks of open shape, and a folder for compiled modules that each test has to itself."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

from tvmflow.onnxruntime import modules

#: Convolution whose channels are no multiple of 4, and a mean over the width, as recognisers have.
LINES = """
<ir_version: 8, opset_import: ["" : 17], producer_name: "a test", model_version: 3>
lines (float[N, 3, 8, W] x) => (float[N, 5, 4, H] y, float[N, 5] mean)
{
  c = Conv<kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2]>(x, w)
  y = Relu(c)
  mean = ReduceMean<axes=[2, 3], keepdims=0>(y)
}
"""


def lines() -> onnx.ModelProto:
    model = onnx.parser.parse_model(LINES)
    weight = np.random.default_rng(7).standard_normal((5, 3, 3, 3)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    return model


@pytest.fixture(scope="session")
def content() -> bytes:
    return lines().SerializeToString()


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Return the folder of cached modules."""
    monkeypatch.setenv("TVMFLOW_CACHE_DIR", str(tmp_path))
    return tmp_path / "modules"


@pytest.fixture
def compiled(monkeypatch):
    """Return a list that gets the shapes of each compilation."""
    found = []
    compile_one = modules.Modules._compile

    def noted(self, shapes):
        found.append(tuple(shapes.values()))
        return compile_one(self, shapes)

    monkeypatch.setattr(modules.Modules, "_compile", noted)
    return found
