"""Plans of whole networks: executed from their bytes, they match ONNX Runtime."""

from __future__ import annotations

import pytest
from support.networks import NETWORKS
from support.planned import assert_right, plan_of

from tvmflow.models import build

#: The package's networks at sizes for tests.
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


#: One trap of each kind, for configurations that do not test all of them.
KINDS = ("fire", "u_net", "squeeze_and_excite", "channels_Softmax")


def is_usual(name: str, device: str, dtype: str) -> bool:
    """Return whether a case runs by default: drivers compile the kernels for minutes."""
    if name in MODELS:
        return (name, device, dtype) == ("mobilenet_v2", "adreno", "fp32")
    if name.startswith("channels_") and name not in KINDS:
        # They differ in a reduction, not in the content of a plan.
        return False
    turn = list(NETWORKS).index(name) % 2
    return (device, dtype) == (("adreno", "fp32"), ("cpu", "fp16"))[turn]


CASES = [
    pytest.param(
        *(name, device, dtype),
        marks=[] if is_usual(name, device, dtype) else [pytest.mark.slow],
        id=f"{name}-{device}-{dtype}",
    )
    for name in (*MODELS, *NETWORKS)
    for device in ("adreno", "cpu")
    for dtype in ("fp32", "fp16")
]


@pytest.mark.opencl
@pytest.mark.onnxruntime
@pytest.mark.parametrize(("name", "device", "dtype"), CASES)
def test_network(name, device, dtype, tmp_path):
    model = model_of(name, tmp_path)
    assert_right(plan_of(model, device, dtype=dtype), model, tmp_path)
