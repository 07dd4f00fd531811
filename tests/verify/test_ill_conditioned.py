"""Verdicts of `verify` on networks that amplify their last bits, without quantization."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from support import norm_chains
from support.operators import build, random

from tvmflow.errors import VerificationError
from tvmflow.ir.tensors import TensorInfo
from tvmflow.verify.compare import verify

FEEDS = {"x": np.linspace(-1, 1, 64, dtype=np.float32)}


@pytest.fixture
def model(tmp_path):
    """Write ``(x + 1000) - 1000``, which is off by up to 3e-5, and a whole number from it."""
    nodes = [
        helper.make_node("Add", ["x", "large"], ["sum"]),
        helper.make_node("Sub", ["sum", "again"], ["y"]),
        helper.make_node("Cast", ["y"], ["whole"], to=TensorProto.INT32),
    ]
    constants = dict.fromkeys(("large", "again"), np.float32(1000))
    path = tmp_path / "net.onnx"
    onnx.save(build(nodes, {"x": (64,)}, ["y", "whole"], constants, element_type=None), path)
    return path


def report_of(model, error, whole=0, dtype="fp32"):
    """Verify a module whose results are off by these amounts from the unrounded ones."""
    y = FEEDS["x"] + np.float32(error)
    results = {"y": y, "whole": (FEEDS["x"]).astype(np.int32) + np.int32(whole)}
    return report_of_results(model, FEEDS, results, dtype)


def report_of_results(model, feeds, results, dtype):
    """Verify a module that returns these results."""

    class Module(SimpleNamespace):
        def __call__(self, _feeds):
            return results

    metadata = {"options": {"dtype": dtype}}
    inputs, outputs = (
        [TensorInfo(name, a.shape, str(a.dtype)) for name, a in arrays.items()]
        for arrays in (feeds, results)
    )
    return verify(model, Module(inputs=inputs, outputs=outputs, metadata=metadata), feeds)


@pytest.mark.onnxruntime
def test_a_result_may_be_off_as_much_as_the_last_bits_move_it(model):
    report = report_of(model, 5e-5)
    assert report.passed
    assert "when numbers move by a unit in their last place" in report.outputs[0].tolerance.reason


@pytest.mark.onnxruntime
@pytest.mark.parametrize(("error", "whole"), [(2e-3, 0), (5e-5, 1)])
def test_more_is_wrong_and_so_are_other_whole_numbers(model, error, whole):
    assert not report_of(model, error, whole).passed


@pytest.mark.onnxruntime
@pytest.mark.parametrize(("error", "passes"), [(3e-2, True), (0.1, False)])
def test_of_what_is_stored_in_16_bits_their_last_place_moves(model, error, passes):
    assert report_of(model, error, dtype="fp16").passed == passes
    assert not report_of(model, error).passed


@pytest.mark.onnxruntime
@pytest.mark.parametrize(("error", "passes"), [(1.2e-2, True), (3e-2, False)])
def test_tensors_inside_are_rounded_too(model, error, passes):
    """``(x + 16) - 16``: a changed 16 is subtracted again, but the sum has 6 fractional bits."""
    loaded = onnx.load(model)
    loaded.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.float32(16), "large"))
    loaded.graph.node[1].input[1] = "large"
    onnx.save(loaded, model)
    assert report_of(model, error, dtype="fp16").passed == passes


@pytest.mark.onnxruntime
def test_noise_is_no_more_than_a_thousandth(model):
    """The limit holds for any amplification: with 10⁶ instead of 10³ results change by 3 %."""
    loaded = onnx.load(model)
    for tensor in loaded.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(np.float32(1e6), tensor.name))
    onnx.save(loaded, model)
    report = report_of(model, 0)
    assert not report.passed
    assert report.outputs[0].tolerance.absolute == pytest.approx(1e-3)
    # The reference differs as much from itself: the output is undecided.
    assert report.undecided == ("y",)
    with pytest.raises(VerificationError, match=r"own results of 'y' differ as much"):
        report.raise_if_failed()


@pytest.mark.onnxruntime
def test_a_wrong_result_is_not_called_undecided(model):
    assert report_of(model, 2e-3).undecided == ()


@pytest.mark.onnxruntime
def test_factors_of_sizes_stay(model):
    """Changed factors would give other sizes, which nothing else in the network fits."""
    loaded = onnx.load(model)
    graph, before = loaded.graph, "x"
    graph.initializer.append(numpy_helper.from_array(np.float32(0), "zero"))
    graph.initializer.append(numpy_helper.from_array(np.zeros(20, np.float32), "twenty"))
    nodes = [*graph.node]
    del graph.node[:]
    for index in range(8):
        # x + 0 * sum(w), with w of 20 elements.
        scales, z, w, total, none, x = (f"{n}{index}" for n in ("scales", *"zwtnx"))
        graph.initializer.append(numpy_helper.from_array(np.array([0.3125], np.float32), scales))
        graph.node.extend([
            helper.make_node("Resize", [before, "", scales], [z]),
            helper.make_node("Add", [z, "twenty"], [w]),
            helper.make_node("ReduceSum", [w], [total], keepdims=0),
            helper.make_node("Mul", [total, "zero"], [none]),
            helper.make_node("Add", [before, none], [x]),
        ])  # fmt: skip
        before = x
    nodes[0].input[0] = before
    graph.node.extend(nodes)
    onnx.save(loaded, model)
    assert report_of(model, 3e-2, dtype="fp16").passed


@pytest.mark.onnxruntime
@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_places_that_are_divided_as_floats_do_not_move(tmp_path, dtype):
    """The last row would be out of range."""
    rows, columns = 151, 100
    constants = {
        "k": np.int64([1]), "columns": np.float32(columns), "shape": np.int64([rows * columns]),
    }  # fmt: skip
    nodes = [
        helper.make_node("Reshape", ["x", "shape"], ["flat"]),
        helper.make_node("TopK", ["flat", "k"], ["largest", "place"]),
        helper.make_node("Cast", ["place"], ["float"], to=TensorProto.FLOAT),
        helper.make_node("Div", ["float", "columns"], ["quotient"]),
        helper.make_node("Floor", ["quotient"], ["floor"]),
        helper.make_node("Cast", ["floor"], ["row"], to=TensorProto.INT64),
        helper.make_node("Gather", ["x", "row"], ["y"]),
    ]
    path = tmp_path / "rows.onnx"
    onnx.save(build(nodes, {"x": (rows, columns)}, ["y"], constants), path)
    x = np.arange(rows * columns, dtype=np.float32).reshape(rows, columns) / 256
    report = report_of_results(path, {"x": x}, {"y": x[-1:] + 10}, dtype)
    assert not report.passed
    assert not report.undecided


@pytest.mark.onnxruntime
def test_results_that_are_really_wrong_are_not_called_undecided(tmp_path):
    """A variance that is NaN in 16 bits was reported as a choice among nearly equal values."""
    shape = (1, 6, 512)
    model = norm_chains.network("jax", shape, (2,))
    x = random(shape, 3) + 30
    path = tmp_path / "net.onnx"
    onnx.save(model, path)
    report = report_of_results(path, {"x": x}, {"y": random(shape)}, "fp16")
    assert not report.passed
    assert not report.undecided
    (sentence,) = report.lost
    assert "infinite in 16 bits" in sentence
    assert "(ReduceSum)" in sentence
