"""Plans of whole networks: run as their bytes say, they give what ONNX Runtime gives."""

from __future__ import annotations

import onnxruntime
import pytest
from interpreter import Interpreter
from networks import NETWORKS
from planned import infos, plan_of, seeded_arrays

from tvmflow.deploy.kept import all_to_logical
from tvmflow.models import build
from tvmflow.standalone.export import write_plan
from tvmflow.tolerance import NETWORK, STORED_AS_HALF, assert_close

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


def check(plan, model, folder, dtype):
    """Compare what the plan's bytes give with ONNX Runtime."""
    content = write_plan(plan, folder / "weights")
    arrays = seeded_arrays(plan)
    inputs, outputs = infos(plan)
    source = model.SerializeToString() if hasattr(model, "SerializeToString") else str(model)
    session = onnxruntime.InferenceSession(source)
    references = session.run([o.name for o in outputs], all_to_logical(inputs, arrays))
    got = all_to_logical(outputs, Interpreter(content, folder / "weights")(arrays))
    table = STORED_AS_HALF if dtype == "fp16" else NETWORK
    for info, reference in zip(outputs, references, strict=True):
        assert_close(got[info.name], reference, table, info.name)


@pytest.mark.opencl
@pytest.mark.onnxruntime
@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
@pytest.mark.parametrize("device", ["cpu", "adreno"])
@pytest.mark.parametrize("name", [*MODELS, *NETWORKS])
def test_network(name, device, dtype, tmp_path):
    model = model_of(name, tmp_path)
    plan = plan_of(model, device, dtype=dtype)
    check(plan, model, tmp_path, dtype)
