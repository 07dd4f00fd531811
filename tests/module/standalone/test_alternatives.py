"""Plain kernels of compiled networks compute the same, and replace what a driver computes wrong."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from support.drivers import system_loader
from support.faulty_driver import build_faulty_driver, fault, functions_of
from support.operators import build
from support.standalone_api import OPENCL, Model

import tvmflow
from tvmflow.errors import InputError, TargetError
from tvmflow.module.standalone.read import describe, find_plans, find_weights

pytestmark = pytest.mark.opencl

CONFIGURATIONS = [
    pytest.param({"device": "adreno", "storage": "texture"}, id="textures"),
    pytest.param(
        {"device": "adreno", "storage": "texture", "dtype": "fp16", "accumulate": "fp32"},
        id="half textures",
    ),
    pytest.param({"device": "mali", "dtype": "fp16", "accumulate": "fp32"}, id="mali fp16"),
    pytest.param({"device": "nvidia", "storage": "buffer"}, id="nvidia"),
    pytest.param({"device": "cpu"}, id="cpu"),
]
#: Table that uses all plain kernels, on any device.
ALL_PLAIN = [{"id": "plain", "fault": "none", "device": "?", "actions": {"use": ["safe_kernels"]}}]


@pytest.fixture(scope="module")
def network(tmp_path_factory) -> Path:
    """Return a network with convolutions of all kinds, sums of rows and moves."""
    rng = np.random.default_rng(5)

    def weights(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) * 0.3).astype(np.float32)

    nodes = [
        helper.make_node("Conv", ["image", "w1"], ["a"], "conv", pads=[1] * 4, strides=[2, 2]),
        helper.make_node("Relu", ["a"], ["b"], "relu"),
        helper.make_node("Conv", ["b", "w2"], ["c"], "depthwise", group=14, pads=[1] * 4),
        helper.make_node("Conv", ["c", "w3"], ["d"], "pointwise"),
        helper.make_node("MaxPool", ["d"], ["e"], "pool", kernel_shape=[3, 3], strides=[2, 2]),
        helper.make_node("Softmax", ["e"], ["f"], "softmax", axis=1),
        helper.make_node("Concat", ["e", "f"], ["g"], "concat", axis=1),
        helper.make_node("Conv", ["g", "w4"], ["scores"], "head"),
    ]
    tensors = {
        "w1": weights(14, 3, 3, 3),
        "w2": weights(14, 1, 3, 3),
        "w3": weights(10, 14, 1, 1),
        "w4": weights(5, 20, 1, 1),
    }
    path = tmp_path_factory.mktemp("network") / "net.onnx"
    onnx.save(build(nodes, {"image": (1, 3, 29, 31)}, ["scores"], tensors), path)
    return path


@pytest.fixture(scope="module")
def compiled(compiled_once):
    """Return a function that compiles a library with plain kernels."""
    return lambda options: compiled_once(alternatives="safe", **options)


@pytest.mark.parametrize("options", CONFIGURATIONS)
def test_all_plain_kernels_are_right(compiled, options):
    path = compiled(options)
    with Model(path) as model:
        usual = model.self_test_with()
    assert usual["functions"] == []
    assert usual["tensors"] >= usual["alternatives"] >= 6
    with Model(path, drivers=json.dumps(ALL_PLAIN)) as model:
        plain = model.self_test_with(runs=2)
    assert plain["functions"] == []
    assert plain["alternatives_used"] == usual["alternatives"]


def test_several_shapes_share_plain_kernels(network, tmp_path):
    """The shapes have functions of their own; weights are stored once."""
    path, options = tmp_path / "lib.so", {"target": "opencl", "device": "adreno"}
    model = onnx.load(network)
    for name, dim in zip("hw", model.graph.input[0].type.tensor_type.shape.dim[2:], strict=True):
        dim.dim_param = name
    model.graph.output[0].type.tensor_type.ClearField("shape")
    shapes = {"shapes": {"image": (1, 3, "?", "?")}, "at": [(29, 31), (32, 17)]}
    with tvmflow.compile(
        model, format="standalone", alternatives="safe", **options, **shapes
    ) as module:
        module.save(path)
    with Model(path, drivers=json.dumps(ALL_PLAIN), backend=OPENCL) as plain:
        report = plain.self_test_with()
    assert report["functions"] == []
    assert report["alternatives_used"] == report["alternatives"] >= 12


# -- a driver that computes one kernel wrong ----------------------------------------------------


@pytest.fixture(scope="module")
def faulty_driver(tmp_path_factory) -> Path:
    # Functions of a driver without a loader are found by its objects, and not by their names.
    loader = system_loader()
    if loader is None:
        pytest.skip("no OpenCL loader is installed (Debian's ocl-icd-libopencl1)")
    return build_faulty_driver(tmp_path_factory.mktemp("driver"), loader)


@pytest.fixture
def breaking(monkeypatch):
    """Return a function that lets the driver compute a kernel wrong."""

    def set_kernel(name: str, argument: int, rate: int = 1) -> None:
        for variable, value in fault(name, argument, rate).items():
            monkeypatch.setenv(variable, value)

    return set_kernel


@pytest.mark.parametrize("options", CONFIGURATIONS[:3:2])
def test_each_kernel_that_is_wrong_is_found(compiled, options, faulty_driver, breaking):
    path = compiled(options)
    (plan,) = find_plans(path)
    image = np.random.default_rng(2).standard_normal((1, 3, 29, 31)).astype(np.float32)
    with Model(path) as model:
        (wanted,) = model(image)
    kernels = functions_of(plan)
    assert len(kernels) >= 6
    for name, (function, argument) in kernels.items():
        breaking(name, argument)
        with Model(path, opencl_library=faulty_driver, backend=OPENCL) as model:
            (found,) = model.self_test_with()["functions"]
            assert (found["function"], found["replaced"], found["right"]) == (function, True, True)
            (scores,) = model(image)
        np.testing.assert_allclose(scores, wanted, rtol=2e-2, atol=2e-2 * np.abs(wanted).max())


def test_twenty_unsteady_kernels_are_found(compiled, faulty_driver, breaking):
    path = compiled({"device": "cpu"})
    (plan,) = find_plans(path)
    name, (function, argument) = list(functions_of(plan).items())[1]
    breaking(name, argument, rate=10)
    for _ in range(20):
        with Model(path, opencl_library=faulty_driver, backend=OPENCL) as model:
            report = model.self_test_with(runs=100)
        assert {f["function"] for f in report["functions"]} == {function}
        assert report["alternatives_used"] + report["choices_used"] == 1


# -- the option ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"target": "llvm", "format": "standalone"},
        {"target": "opencl", "format": "tvm"},
    ],
)
def test_where_there_are_no_alternatives(network, options):
    with pytest.raises(TargetError, match="standalone library for opencl can have them"):
        tvmflow.compile(network, alternatives="safe", **options)


def test_an_unknown_word(network):
    with pytest.raises(Exception, match="safe"):
        tvmflow.compile(
            network, target="opencl", format="standalone", device="cpu", alternatives="save"
        )


def test_the_description_says_what_they_add(compiled):
    path = compiled({"device": "cpu"})
    plans = find_plans(path)
    about = describe(path, plans, find_weights(path, plans[0]))
    added = about["alternatives"]
    assert added["calls"] >= 6
    assert added["tensors"] >= added["calls"]
    assert 0 < added["values"] <= 64 << 10
    assert 0 < added["source"] < about["sizes"]["source"]
    assert "tensors between functions" in about["self_test"]


def test_a_self_test_from_python(compiled):
    with tvmflow.load(compiled({"device": "cpu"})) as module:
        tested = module.self_test(runs=1)
        with pytest.raises(InputError, match="runs=-1"):
            module.self_test(runs=-1)
    assert tested.summary().endswith("the outputs of 1 more runs were equal.")
    assert tested.findings() == []
