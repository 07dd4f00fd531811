"""Every kernel of the demo's networks under Oclgrind: no access out of bounds, no data race.

``test_networks.py`` runs further small networks under Oclgrind.
"""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import helper
from support.oclgrind import Oclgrind
from support.operators import build

import tvmflow
from tvmflow.devices.choices import PRECISIONS, STORAGES
from tvmflow.devices.target import PRESETS
from tvmflow.models import build as build_model
from tvmflow.module.blocked_layout import to_logical
from tvmflow.verify.tolerance import NETWORK, STORED_AS_HALF, assert_close

pytestmark = [pytest.mark.oclgrind, pytest.mark.opencl]

#: Small enough for an interpreter of instructions; channel counts that are no whole blocks.
NETWORKS = {
    "mobilenet_v2": ("mobilenet_v2", {"size": 32, "width": 0.35, "classes": 21}),
    "mobilenet_v2_1.4": ("mobilenet_v2", {"size": 32, "width": 1.4, "classes": 21}),
    "facebox_net": ("facebox_net", {"size": 16, "boxes": 5}),
}

#: Cases that run by default.  `auto` chooses textures for adreno and buffers for the CPU.
USUAL = [
    *(
        (name, device, "auto", "fp32")
        for name in ("mobilenet_v2", "facebox_net")
        for device in ("cpu", "adreno")
    ),
    ("mobilenet_v2", "cpu", "texture", "fp32"),
    ("mobilenet_v2", "adreno", "texture", "fp16"),
    ("mobilenet_v2", "adreno", "buffer", "fp16"),
]


def cases():
    listed = []
    for name in NETWORKS:
        # Wide layers have the code of narrow ones; interpreting them takes minutes.
        storages = ("auto",) if name == "mobilenet_v2_1.4" else STORAGES
        for device in PRESETS:
            for storage in storages:
                for dtype in PRECISIONS:
                    case = (name, device, storage, dtype)
                    marks = [] if case in USUAL else [pytest.mark.slow]
                    listed.append(pytest.param(*case, marks=marks, id="-".join(case)))
    return listed


def compiled(name, folder, device, storage, dtype):
    """Return the model's path, its module, and inputs."""
    builder, parameters = NETWORKS[name]
    path = folder / "model.onnx"
    build_model(builder, path, **parameters)
    module = tvmflow.compile(
        path, target="opencl", device=device, storage=storage, dtype=dtype, accumulate="fp32"
    )
    rng = np.random.default_rng(3)
    feeds = {i.name: rng.standard_normal(i.shape).astype(np.float32) for i in module.inputs}
    return path, module, feeds


@pytest.mark.parametrize(("name", "device", "storage", "dtype"), cases())
def test_kernels_are_clean(name, device, storage, dtype, tmp_path, under_oclgrind):
    path, module, feeds = compiled(name, tmp_path, device, storage, dtype)
    with module:
        outputs = under_oclgrind()(module, feeds)
    (reference,) = onnxruntime.InferenceSession(path).run(None, feeds)
    (output,) = outputs.values()
    assert_close(output, reference, STORED_AS_HALF if dtype == "fp16" else NETWORK)


def test_out_of_bounds_image_write_is_reported(tmp_path):
    _, module, feeds = compiled("facebox_net", tmp_path, "adreno", "texture", "fp32")
    oclgrind = Oclgrind(tmp_path, "-DMOVED=1")
    with module, pytest.raises(AssertionError, match=r"Oclgrind found:\s+Invalid write"):
        oclgrind(module, feeds)
    oclgrind.close()


@pytest.mark.parametrize("storage", ["texture", "buffer"])
def test_kernels_between_blocked_inputs_and_outputs_are_clean(storage, under_oclgrind):
    """Cover copies between buffers and textures, and inputs whose panels the host writes."""
    weight = np.random.default_rng(4).standard_normal((6, 6, 3, 3)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["y"], pads=[1] * 4),
        helper.make_node("Conv", ["y", "w"], ["z"], pads=[1] * 4),
        helper.make_node("Add", ["z", "x"], ["s"]),
    ]
    model = build(nodes, {"x": (1, 6, 7, 5)}, [*"yzs"], {"w": weight}, opset=18)
    x = np.random.default_rng(5).standard_normal((1, 6, 7, 5)).astype(np.float32)
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    oclgrind = under_oclgrind()
    for kept in ({"x": "nchw4c", "y": "nchw4c", "z": "texture"}, {"x": "texture", "s": "texture"}):
        options = {"device": "adreno", "storage": storage, "keep_layout": kept}
        with tvmflow.compile(model, **options) as module:
            outputs = oclgrind(module, {"x": x})
            for info, want in zip(module.outputs, expected, strict=True):
                assert_close(to_logical(info, outputs[info.name]), want)
