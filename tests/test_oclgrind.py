"""Every kernel of the demo's networks under Oclgrind: no access out of bounds, no data race."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import tvmflow
from tvmflow.deploy.kept import to_logical
from tvmflow.models import build as build_model
from tvmflow.tolerance import NETWORK, STORED_AS_HALF, assert_close

pytestmark = [pytest.mark.oclgrind, pytest.mark.opencl]

RUN = """
import sys
import numpy as np
import tvmflow
module = tvmflow.load(sys.argv[1])
inputs = dict(np.load(sys.argv[2]))
outputs = module(**inputs)
np.savez(sys.argv[3], **{info.name: outputs[info.name] for info in module.outputs})
"""

#: Small enough for an interpreter of instructions; channel counts that are no whole blocks.
NETWORKS = {
    "mobilenet_v1": {"size": 32, "width": 0.25, "classes": 21},
    "mobilenet_v2": {"size": 32, "width": 0.35, "classes": 21},
    "facebox_net": {"size": 16, "boxes": 5},
}


#: Textures for adreno and buffers for the CPU are what `auto` chooses.
CASES = [
    *((name, device, "auto", "fp32") for name in NETWORKS for device in ("cpu", "adreno")),
    ("mobilenet_v2", "adreno", "buffer", "fp32"),
    ("mobilenet_v2", "cpu", "texture", "fp32"),
    ("mobilenet_v2", "adreno", "texture", "fp16"),
    ("mobilenet_v2", "adreno", "buffer", "fp16"),
]


def under_oclgrind(module, feeds, kernels, tmp_path):
    """Run a module in a process of its own; its outputs by name."""
    np.savez(tmp_path / "in.npz", **feeds)

    log = tmp_path / "oclgrind.log"
    program = [sys.executable, "-c", RUN, str(module), f"{tmp_path}/in.npz", f"{tmp_path}/out.npz"]
    run = subprocess.run(
        ["oclgrind", "--data-races", "--check-api", "--inst-counts", "--log", str(log), *program],
        capture_output=True,
        text=True,
        check=False,
        timeout=800,
    )
    assert run.returncode == 0, run.stderr
    assert log.read_text() == "", log.read_text()[:3000]
    # The counts show that it was Oclgrind that ran the kernels, and all of them.
    assert run.stdout.count("Instructions executed for kernel") >= kernels
    return dict(np.load(tmp_path / "out.npz"))


@pytest.mark.parametrize(("name", "device", "storage", "dtype"), CASES)
def test_kernels_are_clean(name, device, storage, dtype, tmp_path):
    model, module = tmp_path / "model.onnx", tmp_path / "model.so"
    build_model(name, model, **NETWORKS[name])
    with tvmflow.compile(model, device=device, storage=storage, dtype=dtype) as compiled:
        compiled.save(module)
        kernels = len(compiled.metadata["kernels"])
        shapes = {info.name: info.shape for info in compiled.inputs}
    rng = np.random.default_rng(3)
    feeds = {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    outputs = under_oclgrind(module, feeds, kernels, tmp_path)
    reference = onnxruntime.InferenceSession(model).run(None, feeds)[0]
    (output,) = outputs.values()
    assert_close(output, reference, STORED_AS_HALF if dtype == "fp16" else NETWORK)


@pytest.mark.parametrize("storage", ["texture", "buffer"])
def test_kernels_between_blocked_inputs_and_outputs_are_clean(storage, tmp_path):
    """Both copies, from a buffer to a texture and back, and panels that the host writes."""
    weight = np.random.default_rng(4).standard_normal((6, 6, 3, 3)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["y"], pads=[1] * 4),
        helper.make_node("Conv", ["y", "w"], ["z"], pads=[1] * 4),
        helper.make_node("Add", ["z", "x"], ["s"]),
    ]
    graph = helper.make_graph(
        nodes,
        "blocked",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 6, 7, 5))],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, (1, 6, 7, 5)) for n in "yzs"],
        [numpy_helper.from_array(weight, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    x = np.random.default_rng(5).standard_normal((1, 6, 7, 5)).astype(np.float32)
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    path = tmp_path / "model.so"
    for kept in ({"x": "nchw4c", "y": "nchw4c", "z": "texture"}, {"x": "texture", "s": "texture"}):
        options = {"device": "adreno", "storage": storage, "keep_layout": kept}
        with tvmflow.compile(model, **options) as compiled:
            compiled.save(path)
            kernels, infos = len(compiled.metadata["kernels"]), compiled.outputs
        outputs = under_oclgrind(path, {"x": x}, kernels, tmp_path)
        for info, want in zip(infos, expected, strict=True):
            assert_close(to_logical(info, outputs[info.name]), want)
