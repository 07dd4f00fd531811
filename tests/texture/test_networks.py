"""Whole small networks in every storage, and how often their layout is converted."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from networks import NETWORKS, fire

import tvmflow
from tvmflow.models import build
from tvmflow.tolerance import assert_close

STORAGES = ("texture", "buffer", "auto")
DEVICES = ("adreno", "cpu")

#: Networks of the package, at sizes for tests: name, parameters.
MODELS = {
    "mobilenet_v1": ("mobilenet_v1", {"size": 32, "width": 0.25}),
    "mobilenet_v2_0.35": ("mobilenet_v2", {"size": 32, "width": 0.35}),
    "mobilenet_v2_1.4": ("mobilenet_v2", {"size": 32, "width": 1.4}),
    "facebox_net": ("facebox_net", {"size": 64}),
}


def feeds_of(model):
    rng = np.random.default_rng(1)
    return {i.name: rng.standard_normal(i.shape).astype(i.dtype) for i in model.inputs}


def check(source, path_or_bytes, device, storage):
    with tvmflow.compile(source, target="opencl", device=device, storage=storage) as module:
        feeds = feeds_of(module)
        references = onnxruntime.InferenceSession(path_or_bytes).run(None, feeds)
        outputs = module(**feeds)
        for info, reference in zip(module.outputs, references, strict=True):
            assert_close(outputs[info.name], reference, name=info.name)
        return module.metadata


@pytest.mark.opencl
@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", NETWORKS)
def test_network(name, device, storage):
    model = NETWORKS[name]()
    metadata = check(model, model.SerializeToString(), device, storage)
    stored = [t["storage"] for t in metadata["memory"]["tensors"]]
    # What was asked for is what was tested.
    if storage == "texture":
        assert "texture" in stored
    if storage == "buffer":
        assert "texture" not in stored


@pytest.mark.opencl
@pytest.mark.parametrize(
    ("device", "storage"), [("adreno", "texture"), ("adreno", "buffer"), ("cpu", "auto")]
)
@pytest.mark.parametrize("name", MODELS)
def test_model(name, device, storage, tmp_path):
    builder, parameters = MODELS[name]
    path = tmp_path / "model.onnx"
    build(builder, path, **parameters)
    check(path, str(path), device, storage)


@pytest.mark.parametrize("storage", ["texture", "auto"])
@pytest.mark.parametrize("name", ["mobilenet_v1", "mobilenet_v2", "fire"])
def test_no_conversion_between_the_first_and_the_last_convolution(name, storage, tmp_path):
    if name == "fire":
        source = fire(squeeze=4, expand=(8, 8))
    else:
        source = tmp_path / "model.onnx"
        build(name, source, size=32, width=0.5)
    with tvmflow.compile(source, target="opencl", device="adreno", storage=storage) as module:
        tensors = module.metadata["memory"]["tensors"]
        # Tensors between functions, in the order in which they are written.
        called = [tensor["producer"] for tensor in tensors]
    convolutions = [i for i, f in enumerate(called) if "conv2d" in f or "depthwise" in f]
    assert len(convolutions) >= 8
    between = called[convolutions[0] : convolutions[-1] + 1]
    assert [f for f in between if "pack" in f] == []
    if storage == "texture":
        stored = {tensors[i]["storage"] for i in range(convolutions[0], convolutions[-1] + 1)}
        assert stored == {"texture"}
