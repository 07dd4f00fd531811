"""The whole way of a model, from the ONNX file to numbers."""

from __future__ import annotations

import shutil
import time

import numpy as np
import onnxruntime
import pytest
from onnx import helper
from support.operators import build, check, conv, random

import tvmflow
from tvmflow.compiler.driver import STAGES
from tvmflow.errors import TvmflowError
from tvmflow.models import build as build_model
from tvmflow.verify.tolerance import assert_close

TARGETS = ["llvm", pytest.param("opencl", marks=pytest.mark.opencl)]

#: Small variants of every example network; the full sizes are marked slow.
NETWORKS = {
    "mobilenet_v1": {"size": 64, "width": 0.25},
    "mobilenet_v2": {"size": 64, "width": 0.35},
    "facebox_net": {"size": 64, "boxes": 64},
}


def check_network(path, target, device="cpu"):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(5)
    feeds = {
        value.name: rng.standard_normal(value.shape).astype(np.float32)
        for value in session.get_inputs()
    }
    references = session.run(None, feeds)
    with tvmflow.compile(path, target=target, device=device) as module:
        outputs = module(**feeds)
        for info, reference in zip(module.outputs, references, strict=True):
            # The magnitude is far from zero: a network that returns nothing would be seen.
            assert np.abs(reference).max() > 1e-3
            assert_close(outputs[info.name], reference, name=info.name)


@pytest.mark.opencl
def test_names_of_tensors_that_are_numbers():
    """Kernels' parameters are called after tensors, and identifiers begin with no digit."""
    nodes = [
        helper.make_node("Conv", ["0", "w"], ["1"], pads=[1] * 4),
        helper.make_node("Mul", ["1", "_0"], ["2"]),
    ]
    shapes = {"0": (1, 3, 5, 5), "_0": (1, 4, 5, 5)}
    model = build(nodes, shapes, ["2"], {"w": random((4, 3, 3, 3))})
    assert "conv2d" in check(model, "opencl", "adreno")


@pytest.mark.quick
@pytest.mark.optimised
@pytest.mark.parametrize("name", NETWORKS)
def test_network(name, tmp_path):
    path = tmp_path / f"{name}.onnx"
    build_model(name, path, **NETWORKS[name])
    check_network(path, "llvm")


@pytest.mark.optimised
@pytest.mark.opencl
@pytest.mark.parametrize(
    ("name", "device"),
    [
        ("mobilenet_v2", "cpu"),
        ("mobilenet_v1", "nvidia"),
        pytest.param("mobilenet_v2", "nvidia", marks=pytest.mark.slow),
    ],
)
def test_network_on_opencl(name, device, tmp_path):
    """Others, and other devices, are in ``texture/test_networks.py``."""
    path = tmp_path / f"{name}.onnx"
    build_model(name, path, **NETWORKS[name])
    check_network(path, "opencl", device)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "target"),
    [("mobilenet_v1", "llvm"), pytest.param("mobilenet_v2", "opencl", marks=pytest.mark.opencl)],
)
def test_full_network(name, target, tmp_path):
    path = tmp_path / f"{name}.onnx"
    build_model(name, path)
    check_network(path, target)


def test_ir_is_dumped_after_each_stage(tmp_path):
    with tvmflow.compile(conv((1, 3, 8, 8), 5), target="llvm", dump_ir=tmp_path / "ir"):
        pass
    written = sorted(p.name for p in (tmp_path / "ir").iterdir())
    for index, stage in enumerate(STAGES):
        assert any(w.startswith(f"{index}_{stage.name}.") for w in written)
    assert "conv2d" in (tmp_path / "ir" / "2_layout.py").read_text()


def test_dumped_ir_follows_no_link(tmp_path):
    """In a folder that others can write, a link could lead to any file of the user."""
    victim, folder = tmp_path / "victim", tmp_path / "ir"
    victim.write_text("kept")
    folder.mkdir()
    written = [folder / f"{index}_{stage.name}.py" for index, stage in enumerate(STAGES[:3])]
    for path in written:
        path.symlink_to(victim)
    tvmflow.compile(conv((1, 3, 8, 8), 5), target="llvm", dump_ir=folder).close()
    assert victim.read_text() == "kept"
    assert not any(path.is_symlink() for path in written)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    passes = folder / f"1_{STAGES[1].name}"
    shutil.rmtree(passes)
    passes.symlink_to(elsewhere)
    with pytest.raises(TvmflowError, match="is a link"):
        tvmflow.compile(conv((1, 3, 8, 8), 5), target="llvm", dump_ir=folder)
    assert not list(elsewhere.iterdir())


def test_progress_names_every_stage():
    seen = []
    model = conv((1, 3, 8, 8), 5)
    with tvmflow.compile(model, target="llvm", progress=lambda *step: seen.append(step)):
        pass
    assert seen == [(stage.name, i, len(STAGES)) for i, stage in enumerate(STAGES)]


def test_a_dump_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(TvmflowError, match="dump_ir"):
        tvmflow.compile(conv((1, 3, 8, 8), 5), target="llvm", dump_ir=tmp_path / "file" / "x")
    (tmp_path / "ir" / "0_import.py").mkdir(parents=True)
    with pytest.raises(TvmflowError, match="Is a directory"):
        tvmflow.compile(conv((1, 3, 8, 8), 5), target="llvm", dump_ir=tmp_path / "ir")


def test_nothing_stays_behind_when_a_compilation_fails(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(TvmflowError):
        tvmflow.compile(tmp_path / "missing.onnx", target="llvm")
    assert not list(tmp_path.iterdir())


def test_stage_times_and_kernels_are_in_the_metadata():
    with tvmflow.compile(conv((1, 3, 8, 8), 5), target="llvm") as module:
        names = ["prepare", *(stage.name for stage in STAGES), "link"]
        assert list(module.metadata["stage_ms"]) == names
        assert "conv2d" in {k["family"] for k in module.metadata["kernels"]}


@pytest.mark.parametrize("target", TARGETS)
def test_stage_times_add_up_to_the_time_of_the_call(target):
    compile_network = tvmflow.compile
    started = time.perf_counter()
    with compile_network(conv((1, 3, 32, 32), 32), target=target, device="cpu") as module:
        wall_ms = (time.perf_counter() - started) * 1e3
        total_ms = sum(module.metadata["stage_ms"].values())
    # Reading the module that was written is not among its stages; the rest is slack.
    assert 0.8 * wall_ms - 50 <= total_ms <= wall_ms + 1


@pytest.mark.nvcc
def test_cuda_code_is_generated_without_a_gpu():
    with_cuda = tvmflow.compile(conv((1, 24, 9, 9), 20), target="cuda")
    try:
        kernels = with_cuda.metadata["kernels"]
        assert {"conv2d"} <= {k["family"] for k in kernels}
        assert all(k["name"].endswith("_kernel") for k in kernels)
    finally:
        with_cuda.close()
