"""Whole small networks in every storage, and how often their layout is converted."""

from __future__ import annotations

from pathlib import Path
from shutil import which

import numpy as np
import onnx
import onnxruntime
import pytest
from support.first_stages import compiled_until
from support.networks import NETWORKS, fire

import tvmflow
from tvmflow.devices.choices import PRECISIONS, STORAGES
from tvmflow.models import build
from tvmflow.verify.tolerance import NETWORK, STORED_AS_HALF

#: The package's networks at sizes for tests: name, parameters.
MODELS = {
    "mobilenet_v1": ("mobilenet_v1", {"size": 32, "width": 0.25}),
    "mobilenet_v2_0.35": ("mobilenet_v2", {"size": 32, "width": 0.35}),
    "mobilenet_v2_1.4": ("mobilenet_v2", {"size": 32, "width": 1.4}),
    "facebox_net": ("facebox_net", {"size": 64}),
    "deit_tiny": ("deit_tiny", {"width": 0.25, "depth": 2, "size": 48, "classes": 10}),
    "mobilevit": ("mobilevit", {"width": 0.25, "size": 64, "classes": 10}),
    "face_detector": ("face_detector", {"size": 64}),
}

#: One network per feature: concat, residuals, resize, gate, reduction over channels, dense.
KINDS = (
    "fire",
    "bottlenecks",
    "u_net",
    "squeeze_and_excite",
    "channels_Softmax",
    "channels_Flatten",
)

#: Configurations that take turns over the networks: one each, two for each of `KINDS`.
TURNS = (
    ("adreno", "texture", "fp32"),
    ("cpu", "auto", "fp32"),
    ("adreno", "texture", "fp16"),
    ("adreno", "buffer", "fp32"),
    ("adreno", "auto", "fp32"),
    ("cpu", "texture", "fp16"),
    ("mali", "texture", "fp32"),
    ("adreno", "buffer", "fp16"),
)
#: Configurations of the package's networks, which take longer.
OF_MODELS = {
    "mobilenet_v1": (("adreno", "buffer", "fp32"), ("cpu", "auto", "fp32")),
    "mobilenet_v2_0.35": (("adreno", "texture", "fp32"), ("adreno", "auto", "fp16")),
    "mobilenet_v2_1.4": (("adreno", "texture", "fp32"),),
    "facebox_net": (("cpu", "auto", "fp32"),),
    "deit_tiny": (("adreno", "texture", "fp32"), ("adreno", "auto", "fp16")),
    "mobilevit": (("adreno", "auto", "fp32"),),
    "face_detector": (("adreno", "texture", "fp32"), ("mali", "auto", "fp32")),
}


def is_usual(name: str, device: str, storage: str, dtype: str) -> bool:
    """Return whether a case runs by default: all of them take half an hour."""
    if name in MODELS:
        return (device, storage, dtype) in OF_MODELS[name]
    turn = list(NETWORKS).index(name)
    turns = (turn, turn + 5) if name in KINDS else (turn,)
    return (device, storage, dtype) in {TURNS[t % len(TURNS)] for t in turns}


def cases():
    listed = []
    for name in (*MODELS, *NETWORKS):
        for device in ("adreno", "cpu", "mali", "nvidia"):
            for storage in STORAGES:
                for dtype in PRECISIONS:
                    usual = is_usual(name, device, storage, dtype)
                    marks = [] if usual else [pytest.mark.slow]
                    if name in KINDS:
                        marks.append(pytest.mark.optimised)
                    case = (name, device, storage, dtype)
                    listed.append(pytest.param(*case, marks=marks, id="-".join(case)))
    return listed


def model_of(name: str, folder: Path) -> onnx.ModelProto:
    if name in NETWORKS:
        return NETWORKS[name]()
    builder, parameters = MODELS[name]
    build(builder, folder / "model.onnx", **parameters)
    return onnx.load(folder / "model.onnx")


@pytest.mark.opencl
@pytest.mark.parametrize(("name", "device", "storage", "dtype"), cases())
def test_network(name, device, storage, dtype, tmp_path, compare, every_driver, under_oclgrind):
    """Results are right on drivers; traps are small enough for Oclgrind to check their kernels."""
    model = model_of(name, tmp_path)
    rng = np.random.default_rng(1)
    with tvmflow.compile(
        model, target="opencl", device=device, storage=storage, dtype=dtype, accumulate="fp32"
    ) as module:
        feeds = {i.name: rng.standard_normal(i.shape).astype(i.dtype) for i in module.inputs}
        references = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)
        compare(module, feeds, references, STORED_AS_HALF if dtype == "fp16" else NETWORK)
        if name in NETWORKS and every_driver and which("oclgrind"):
            under_oclgrind()(module, feeds)
        tensors = module.metadata["memory"]["tensors"]
    # The tested configuration is the requested one.
    if storage != "auto":
        assert ("texture" in {t["storage"] for t in tensors}) == (storage == "texture")
    blocked = {t["stored_as"] for t in tensors if t["block"] is not None}
    assert ("float16" in blocked) == (dtype == "fp16")


@pytest.mark.parametrize("storage", ["texture", "auto"])
@pytest.mark.parametrize("name", ["mobilenet_v1", "mobilenet_v2", "fire"])
def test_no_conversion_between_the_first_and_the_last_convolution(name, storage, tmp_path):
    if name == "fire":
        source = fire(squeeze=4, expand=(8, 8))
    else:
        source = tmp_path / "model.onnx"
        build(name, source, size=32, width=0.5)
    job = compiled_until("lower", source, target="opencl", device="adreno", storage=storage)
    tensors = job.memory.report()["tensors"]
    # Tensors between functions, in the order in which they are written.
    called = [tensor["producer"] for tensor in tensors]
    convolutions = [i for i, f in enumerate(called) if "conv2d" in f or "depthwise" in f]
    assert len(convolutions) >= 8
    between = called[convolutions[0] : convolutions[-1] + 1]
    assert [f for f in between if "pack" in f] == []
    if storage == "texture":
        stored = {tensors[i]["storage"] for i in range(convolutions[0], convolutions[-1] + 1)}
        assert stored == {"texture"}
