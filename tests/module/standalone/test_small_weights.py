"""Weights stored in 16 or 8 bits: the network's results, and its size."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx import parser as onnx_parser
from support import standalone_api as api
from support.operators import references
from support.quantized_networks import quantized, resnet18

import tvmflow
from tvmflow.compiler import driver
from tvmflow.errors import CompileError, ModelError, TargetError
from tvmflow.frontend.weight_quantization import in_half, in_steps
from tvmflow.module.standalone.format import Section
from tvmflow.module.standalone.read import find_plan, find_plans
from tvmflow.module.standalone.small_weights import Axes, Form, smaller
from tvmflow.verify.compare import verify
from tvmflow.verify.tolerance import NETWORK, STORED_AS_HALF, assert_close

RNG = np.random.default_rng(3)
#: Numbers of channels are no multiples of 4 or 16.
NETWORK_TEXT = """
<ir_version: 8, opset_import: ["": 17]>
net (float[1, 5, 9, 9] x) => (float[1, 83] y) {
  a = Conv <pads = [1, 1, 1, 1]> (x, w, b)
  n = BatchNormalization (a, gamma, beta, mean, variance)
  r = Relu (n)
  c = Conv <pads = [1, 1, 1, 1], group = 37> (r, depthwise)
  d = Conv <strides = [2, 2]> (c, pointwise)
  e = ConvTranspose <strides = [2, 2]> (d, up)
  f = Flatten (e)
  g = MatMul (f, dense)
  h = Gemm <transB = 1> (g, last, bias)
  y = Softmax (h)
}
"""
SHAPES = {
    "w": (37, 5, 3, 3), "b": (37,), "gamma": (37,), "beta": (37,), "mean": (37,),
    "variance": (37,), "depthwise": (37, 1, 3, 3), "pointwise": (27, 37, 1, 1),
    "up": (27, 6, 2, 2), "dense": (600, 70), "last": (83, 70), "bias": (83,),
}  # fmt: skip
#: Axis of the output channels; the other weights are too small, or have no such axis.
AXES = {"w": 0, "depthwise": 0, "pointwise": 0, "up": 1, "dense": 1, "last": 0}


def network() -> onnx.ModelProto:
    model = onnx_parser.parse_model(NETWORK_TEXT)
    for name, shape in SHAPES.items():
        array = RNG.normal(size=shape) / max(1, np.prod(shape[1:])) ** 0.5
        array = np.abs(array) + 0.5 if name in ("variance", "gamma") else array
        tensor = numpy_helper.from_array(array.astype(np.float32), name)
        model.graph.initializer.append(tensor)
    return model


def rounded(model: onnx.ModelProto, kind: str) -> onnx.ModelProto:
    """Return the model with weights rounded by the test, and the norm folded into the first one."""
    arrays = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    scale = arrays["gamma"] / np.sqrt(arrays["variance"].astype(np.float64) + 1e-5)
    arrays["w"] = (arrays["w"] * scale[:, None, None, None]).astype(np.float32)
    arrays["b"] = ((arrays["b"] - arrays["mean"]) * scale + arrays["beta"]).astype(np.float32)
    for name, axis in AXES.items():
        array = arrays[name]
        if kind == "fp16":
            arrays[name] = array.astype(np.float16).astype(np.float32)
            continue
        others = tuple(i for i in range(array.ndim) if i != axis)
        # A step has 17 significant bits, and is at least a 127th of the largest.
        part, power = np.frexp(np.abs(array).max(axis=others, keepdims=True) / 127)
        step = np.ceil(part * 2**17) / 2**17 * 2.0**power
        arrays[name] = (np.rint(array / step) * step).astype(np.float32)
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    del changed.graph.initializer[:]
    norm = changed.graph.node.pop(1)
    changed.graph.node[1].input[0] = norm.input[0]
    for name in SHAPES:
        if name not in norm.input:
            changed.graph.initializer.append(numpy_helper.from_array(arrays[name], name))
    return changed


TARGETS = {
    "llvm": {"target": "llvm"},
    "buffers": {"target": "opencl", "device": "cpu"},
    "textures": {"target": "opencl", "device": "adreno", "storage": "texture"},
    "fp16": {"target": "opencl", "device": "cpu", "dtype": "fp16", "accumulate": "fp32"},
    "fallback": {"target": "opencl", "device": "adreno", "fallback": "cpu"},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "net.onnx"
    onnx.save(network(), path)
    return path


@pytest.mark.parametrize("kind", ["fp16", "int8"])
@pytest.mark.parametrize("target", TARGETS)
def test_results_are_those_of_rounded_weights(target, kind, model, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    options = TARGETS[target]
    path = tmp_path / "net.so"
    with tvmflow.compile(model, format="standalone", weights=kind, **options) as module:
        module.save(path)
    x = RNG.normal(size=(1, 5, 9, 9)).astype(np.float32)
    session = onnxruntime.InferenceSession(
        rounded(onnx.load(model), kind).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    (expected,) = session.run(None, {"x": x})
    for backend in (1, 2) if target == "fallback" else (0,):
        with api.Model(path, backend=backend) as instance:
            instance.self_test()
            (found,) = instance(x)
        assert_close(found, expected, STORED_AS_HALF if target == "fp16" else NETWORK)
    report = verify(model, path, {"x": x})
    assert report.passed, report
    assert report.reference.endswith(f"with weights rounded to {kind}")


def test_a_model_that_the_reference_does_not_take(model, monkeypatch):
    with tvmflow.compile(model, format="standalone", target="llvm", weights="fp16") as module:
        monkeypatch.setattr(onnx.checker, "MAXIMUM_PROTOBUF", 1000)
        with pytest.raises(
            ModelError, match=r"its rounded weights have 0\.0 GB, of which it takes 2"
        ):
            verify(model, module)


def sizes(model: str | onnx.ModelProto, **options: object) -> dict[str | None, int]:
    """Return the bytes of the weights in a library, by storage."""
    found = {}
    for kind in (None, "fp16", "int8"):
        with tvmflow.compile(model, format="standalone", weights=kind, **options) as module:
            plan = find_plan(module.path)
            assert plan is not None
            found[kind] = int(plan.header["weight_bytes"])
            derived = plan[Section.DERIVED]
            if kind is not None:
                own = {Form.HALF} if kind == "fp16" else {Form.SCALED}
                assert set(derived["form"].tolist()) <= own | {Form.RAW}
    return found


@pytest.mark.parametrize("target", ["llvm", "textures"])
def test_files_are_a_half_and_a_quarter(target):
    found = sizes(resnet18(), **TARGETS[target])
    assert found["fp16"] < 0.52 * found[None]
    assert found["int8"] < 0.3 * found[None]


def test_both_plans_of_a_library_share_what_is_stored():
    alone = sizes(network(), **TARGETS["textures"])
    both = sizes(network(), **TARGETS["fallback"])
    assert all(both[kind] < 1.1 * alone[kind] + 8192 for kind in ("fp16", "int8"))


@pytest.mark.opencl
@pytest.mark.onnxruntime
@pytest.mark.parametrize("kind", ["fp16", "int8"])
@pytest.mark.parametrize("winograd", ["opencl", "cpu", "both"])
def test_what_winograd_s_algorithm_makes_of_weights_is_stored_besides(
    winograd, kind, tmp_path, monkeypatch
):
    """It applies to either plan, even if the other one's weights are stored in few bits."""
    asked, path = {"conv": "winograd4"}, tmp_path / "net.so"
    if winograd != "opencl":
        original = driver.for_processor

        def of_cpu(job):
            processor = original(job)
            processor.options = replace(processor.options, algorithms=asked)
            return processor

        monkeypatch.setattr(driver, "for_processor", of_cpu)
    net = network()
    net.graph.node[0].name = "conv"
    options = TARGETS["fallback"] | {"algorithms": asked if winograd != "cpu" else {}}
    with tvmflow.compile(net, format="standalone", weights=kind, **options) as module:
        module.save(path)
    plans = find_plans(path)
    for plan, has_it in zip(plans, (winograd != "cpu", winograd != "opencl"), strict=True):
        # Four rows and columns of outputs are computed from six of inputs.
        sizes = plan[Section.WEIGHTS]["bytes"].tolist()
        assert (36 * 5 * 40 * 4 in sizes or 36 * 5 * 48 * 4 in sizes) == has_it
        assert plan[Section.DERIVED]["form"].any()
        assert not len(plan[Section.TRANSFORMED])
    x = RNG.normal(size=(1, 5, 9, 9)).astype(np.float32)
    (expected,) = references(rounded(net, kind), {"x": x})
    for backend in (1, 2):
        with api.Model(path, backend=backend) as instance:
            instance.self_test()
            assert_close(instance(x)[0], expected, NETWORK)


@pytest.mark.parametrize("axis", [0, 1])
def test_numbers_are_the_nearest(axis):
    array = RNG.normal(size=(7, 50, 3)).astype(np.float32)
    np.testing.assert_array_equal(in_half(array), array.astype(np.float16))
    found = in_steps(array, axis)
    largest = np.abs(array).max(axis=tuple({0, 1, 2} - {axis}), keepdims=True)
    assert np.all(np.abs(found - array) <= largest / 253)
    assert np.all(np.abs(found) <= largest * (1 + 2**-16))


@pytest.mark.parametrize("array", [[np.inf] * 9, [1e6] * 9, [np.nan] * 9])
def test_numbers_beyond_are_left_alone(array):
    assert in_half(np.array([array], np.float32)) is None
    if not np.isfinite(array).all():
        assert in_steps(np.array([array], np.float32), 0) is None


@pytest.mark.parametrize("zeros", [0.0, 1e-38])
def test_channels_of_zeros(zeros):
    array = RNG.normal(size=(4, 100)).astype(np.float32)
    array[2] = zeros
    found = in_steps(array, 0)
    assert not found[2].any()
    assert smaller(found, "int8") is not None


@pytest.mark.parametrize(
    ("array", "axes"),
    [
        ((12, 20, 3, 3), Axes.BOTH),
        ((12, 90, 4), Axes.BOTH),
        ((300, 100), Axes.LAST),
        ((100, 300), Axes.FIRST),
    ],
)
def test_steps_are_found_in_the_layout(array, axes):
    own = tuple(i for i, bit in ((0, Axes.FIRST), (len(array) - 1, Axes.LAST)) if axes & bit)
    times = RNG.integers(-127, 128, array)
    times[(slice(None),) + (0,) * (len(array) - 2) + (slice(None),)] = 127
    if axes != Axes.BOTH:
        times[0, :] = times[:, 0] = 127
    steps = RNG.uniform(0.5, 2, [n if i in own else 1 for i, n in enumerate(array)])
    weight = (times * steps.astype(np.float32)).astype(np.float32)
    found = smaller(weight, "int8")
    assert found is not None
    assert found.axes == axes
    np.testing.assert_array_equal(found.stored, times)
    np.testing.assert_allclose(found.steps, steps.ravel(), rtol=1e-6)


def test_what_bits_do_not_hold_is_stored_as_it_is():
    weight = RNG.normal(size=(20, 20, 4)).astype(np.float32)
    assert smaller(weight, "fp16") is None
    assert smaller(weight, "int8") is None
    assert smaller(weight, None) is None
    assert smaller(weight.astype(np.float16).astype(np.float32)[:2, :2], "fp16") is None


def test_wrong_uses():
    with pytest.raises(TargetError, match="int8 were asked for in the format tvm") as caught:
        tvmflow.compile(network(), target="llvm", weights="int8")
    assert "format=standalone" in caught.value.remedy
    with pytest.raises(TargetError, match="fp16"):
        tvmflow.compile(network(), target="llvm", format="standalone", weights="int4")
    with pytest.raises(CompileError, match="there is nothing to do"):
        tvmflow.compile(
            quantized("resnet18", "QOperator"), target="llvm", format="standalone", weights="int8"
        )
