"""Plans of whole networks: run as their bytes say, they give what ONNX Runtime gives."""

from __future__ import annotations

import pytest
from networks import NETWORKS
from planned import assert_right, plan_of

from tvmflow.models import build

#: Networks of the package at sizes for tests.
MODELS = {
    "mobilenet_v1": {"size": 32, "width": 0.25},
    "mobilenet_v2": {"size": 32, "width": 0.35},
    "facebox_net": {"size": 64},
    "squeezenet": {"size": 64},
}


def model_of(name, folder):
    if name in NETWORKS:
        return NETWORKS[name]()
    path = folder / "model.onnx"
    build(name, path, **MODELS[name])
    return path


@pytest.mark.opencl
@pytest.mark.onnxruntime
@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
@pytest.mark.parametrize("device", ["cpu", "adreno"])
@pytest.mark.parametrize("name", [*MODELS, *NETWORKS])
def test_network(name, device, dtype, tmp_path):
    model = model_of(name, tmp_path)
    assert_right(plan_of(model, device, dtype=dtype), model, tmp_path)
