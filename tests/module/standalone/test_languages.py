"""A compiled network in every language: Python, C, C++ and Java on an OpenCL device."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from support.drivers import run_program
from support.mock_library import ROOT, c_program, cpp_program, java_classes, run_java
from support.operators import build

import tvmflow
from tvmflow.module.bench import benchmark
from tvmflow.verify.compare import verify

pytestmark = [pytest.mark.opencl, pytest.mark.cross, pytest.mark.slow]


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    """Return a small network whose channels fill no blocks, as an ONNX file."""
    rng = np.random.default_rng(5)
    weights = {
        "w1": rng.standard_normal((12, 3, 3, 3)).astype(np.float32),
        "w2": rng.standard_normal((7, 12, 1, 1)).astype(np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["image", "w1"], ["a"], pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "w2"], ["scores"]),
    ]
    path = tmp_path_factory.mktemp("network") / "small.onnx"
    onnx.save(build(nodes, {"image": (1, 3, 33, 31)}, ["scores"], weights), path)
    return path


@pytest.fixture(scope="module")
def library(network):
    path = network.with_name("libsmall.so")
    with tvmflow.compile(
        network, target="opencl", device="cpu", format="standalone", file_name=path.name
    ) as module:
        return module.save(path)


@pytest.fixture(scope="module")
def image():
    return np.random.default_rng(6).standard_normal((1, 3, 33, 31)).astype(np.float32)


@pytest.fixture(scope="module")
def scores(library, image):
    """Return the library's output, run from Python."""
    with tvmflow.load(library) as module:
        return module(image)["scores"]


@pytest.mark.onnxruntime
def test_python_gets_the_numbers_of_the_reference(network, library, image):
    with tvmflow.load(library) as module:
        report = verify(network, module, {"image": image})
        test = module.self_test()
        times = module.profile([image], runs=2)
        timing = benchmark(module, {"image": image}, runs=3)
    assert report.passed
    assert test.compared > 100
    assert test.tolerance_used < 1
    assert len(times) >= 2
    assert all(t.median_us > 0 and t.global_size for t in times)
    assert timing.runs == 3


@pytest.mark.onnxruntime
@pytest.mark.parametrize(("kept", "dtype"), [("texture", "fp16"), ("nchw4c", "fp32")])
def test_python_takes_blocked_inputs_and_those_of_the_model(network, image, kept, dtype):
    with tvmflow.compile(
        network,
        target="opencl",
        device="adreno",
        dtype=dtype,
        accumulate="fp32",
        keep_layout={"image": kept},
        format="standalone",
    ) as module:
        (info,) = module.inputs
        assert (info.shape, info.layout) == ((1, 1, 33, 31, 4), "NCHW4c")
        assert verify(network, module, {"image": image}).passed
        blocked = np.zeros(info.shape, np.float32)
        blocked[:, 0, :, :, :3] = image.transpose(0, 2, 3, 1)
        np.testing.assert_array_equal(module(blocked)[0], module(image)[0])


@pytest.mark.onnxruntime
def test_the_command_line_takes_it_like_any_module(network, library, tmp_path):
    tvm = (sys.executable, "-m", "tvmflow")
    verified = json.loads(run_program(*tvm, "verify", network, library, "--json"))
    assert verified["passed"]
    timed = json.loads(run_program(*tvm, "bench", library, "--runs", "2", "--kernels", "--json"))
    assert len(timed["kernels"]) >= 2
    out = tmp_path / "out.npz"
    run_program(*tvm, "run", library, "--random-seed", "0", "--outputs", out)
    assert np.load(out)["scores"].shape == (1, 7, 17, 16)


def test_the_c_example(library, tmp_path):
    program = c_program(tmp_path / "run", ROOT / "examples" / "c" / "main.c", library)
    lines = run_program(program, tmp_path).splitlines()
    about = json.loads(lines[0])
    assert about["network"]["name"] == "small"
    assert lines[1].startswith("self-test passed: ")
    assert lines[2] == "input image: 1 3 33 31 (12276 bytes)"
    assert lines[4] == "output scores: 1 7 17 16 (7616 bytes)"


def test_the_cpp_example_with_two_instances(library, tmp_path):
    program = cpp_program(tmp_path / "run", ROOT / "examples" / "cpp" / "main.cpp")
    assert run_program(program, library, library).count("scores: 1904 values, the first is 0") == 2


@pytest.mark.java
def test_java_gets_the_same_numbers(library, image, scores, tmp_path):
    classes = java_classes(tmp_path / "classes", Path(__file__).with_name("RunModel.java"))
    image.tofile(tmp_path / "image")
    arguments = (library, tmp_path, tmp_path / "image", tmp_path / "scores")
    lines = run_java(classes, "RunModel", *arguments).splitlines()
    assert lines[0].startswith("passed: "), lines
    assert sum(line.endswith(" true") for line in lines) >= 2, lines
    assert not any("WARNING in native" in line for line in lines), lines
    found = np.fromfile(tmp_path / "scores", np.float32).reshape(scores.shape)
    np.testing.assert_array_equal(found, scores)
