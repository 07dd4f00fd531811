"""Verdicts of `verify` on quantized networks, which round to other steps than ONNX Runtime."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.quantized_networks import picture, quantized

import tvmflow
from tvmflow.ir.tensors import TensorInfo
from tvmflow.verify.compare import verify
from tvmflow.verify.noise import step_of, widened
from tvmflow.verify.reference import exact_session
from tvmflow.verify.tolerance import NETWORK

#: Seed of an input for which ONNX Runtime differs from itself without optimisations.
SEED = 5


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("quantized") / "model.onnx"
    onnx.save(quantized("resnet18", "QDQ"), path)
    return path


def results(path, feeds, optimised, int8="0"):
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.qdqisint8allowed", int8)
    if not optimised:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return exact_session(path, options).run(None, feeds)[0]


def module_with(feeds, output):
    """Return an object that acts as a module with this output."""
    inputs = [TensorInfo(name, a.shape, str(a.dtype)) for name, a in feeds.items()]
    info = TensorInfo("output", output.shape, str(output.dtype))

    class Module(SimpleNamespace):
        def __call__(self, _feeds):
            return {"output": output}

    return Module(inputs=inputs, outputs=[info], metadata={})


@pytest.mark.onnxruntime
def test_a_right_result_passes_that_is_some_steps_off(model):
    """ONNX Runtime's result without its optimisations is as right as the one with them."""
    feeds = picture(onnx.load(model), SEED)
    other, usual = (results(model, feeds, optimised) for optimised in (False, True))
    (tolerance,) = [NETWORK["float32"]]
    error = np.abs(other - usual)
    assert (error > tolerance.relative * np.abs(usual) + tolerance.absolute).any()
    report = verify(model, module_with(feeds, other), feeds)
    assert report.passed
    assert "twice what ONNX Runtime's own results differ by" in report.outputs[0].tolerance.reason


@pytest.mark.onnxruntime
def test_a_quantized_sum_that_is_rounded_as_on_arm_passes(tmp_path):
    """The zero point may be added before or after rounding; only later layers amplify that."""
    scales = {"a": 0.005584836, "b": 0.0013261409, "sum": 0.0061006797, "output": 0.002}
    points = {"a": -98, "b": 20, "sum": -81, "output": 0}
    constants = [
        *(helper.make_tensor(f"{n}_scale", TensorProto.FLOAT, (), [s]) for n, s in scales.items()),
        *(helper.make_tensor(f"{n}_zero", TensorProto.INT8, (), [z]) for n, z in points.items()),
    ]

    def node(kind, source, name, result):
        return helper.make_node(kind, [source, f"{name}_scale", f"{name}_zero"], [result])

    nodes = [
        node("DequantizeLinear", "a", "a", "real_a"),
        node("DequantizeLinear", "b", "b", "real_b"),
        helper.make_node("Add", ["real_a", "real_b"], ["real"]),
        node("QuantizeLinear", "real", "sum", "integers"),
        node("DequantizeLinear", "integers", "sum", "rounded"),
        helper.make_node("Abs", ["rounded"], ["later"]),
        node("QuantizeLinear", "later", "output", "output"),
    ]
    feeds = {"a": np.int8([-107] * 8), "b": np.int8([28] * 8)}  # -6.499996 - 81
    inputs = [helper.make_tensor_value_info(n, TensorProto.INT8, a.shape) for n, a in feeds.items()]
    output = helper.make_tensor_value_info("output", TensorProto.INT8, feeds["a"].shape)
    graph = helper.make_graph(nodes, "sum", inputs, [output], constants)
    path = tmp_path / "sum.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]), path)

    other, usual = (results(path, feeds, optimised=True, int8=int8) for int8 in ("1", "0"))
    assert 1 < np.abs(other.astype(int) - usual).max() < 5
    assert verify(path, module_with(feeds, other), feeds).passed
    with tvmflow.compile(path, target="llvm") as module:
        np.testing.assert_array_equal(module(feeds)["output"], other)


@pytest.mark.onnxruntime
@pytest.mark.parametrize("seed", [2, SEED])
def test_a_wrong_result_fails(model, seed):
    """The network differs in one zero point."""
    wrong = onnx.load(model)
    node = next(n for n in wrong.graph.node if n.op_type == "Conv")
    maker = next(n for n in wrong.graph.node if n.output[0] == node.input[0])
    tensor = next(t for t in wrong.graph.initializer if t.name == maker.input[2])
    values = numpy_helper.to_array(tensor)
    changed = numpy_helper.from_array(values + np.uint8(6), "changed")
    wrong.graph.initializer.append(changed)
    maker.input[2] = "changed"
    feeds = picture(wrong, seed)
    output = results(wrong.SerializeToString(), feeds, optimised=True)
    report = verify(model, module_with(feeds, output), feeds)
    assert not report.passed


@pytest.mark.onnxruntime
def test_our_module_passes(model):
    with tvmflow.compile(model, target="llvm") as module:
        for seed in (2, SEED):
            assert verify(model, module, picture(onnx.load(model), seed)).passed


def test_a_step_is_the_scale_of_what_is_dequantized_last(model):
    loaded = onnx.load(model)
    last = loaded.graph.node[-1]
    assert last.op_type == "DequantizeLinear"
    (scale,) = [t for t in loaded.graph.initializer if t.name == last.input[1]]
    step = step_of(loaded, "output")
    assert step == float(numpy_helper.to_array(scale))
    reference = np.float32([[10 * step, -3 * step]])
    allowed = widened(NETWORK["float32"], reference, 0.0, step)
    assert allowed.absolute * 10 * step == pytest.approx(step, rel=1e-5)
    allowed = widened(NETWORK["float32"], reference, 2 * step, step)
    assert allowed.absolute * 10 * step == pytest.approx(4 * step, rel=1e-5)
