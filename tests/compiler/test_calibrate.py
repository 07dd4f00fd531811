"""``calibrate``: tensors that a measurement keeps in 32 bits, and what is said of them."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from onnx import helper
from support.first_stages import compiled_until
from support.norm_chains import Chain
from support.operators import build, random

import tvmflow
from tvmflow.compiler.compilation import Compilation
from tvmflow.compiler.driver import run_stages
from tvmflow.compiler.options import CompileOptions
from tvmflow.compiler.shapes import expand_variants
from tvmflow.errors import CompileError, TargetError
from tvmflow.verify.reference import run_reference
from tvmflow.verify.tolerance import STORED_AS_HALF, assert_close

SHAPE = (1, 6, 5, 4)
X = random(SHAPE, seed=3)


@pytest.fixture
def model():
    """Return two layers between which values are 3e4 times as large; no estimate predicts it."""
    c = Chain(SHAPE, (1,))
    large = c.add("Conv", "x", c.constant(random((6, 6, 1, 1)) * 3e4))
    small = c.add("Conv", large, c.constant(random((6, 6, 1, 1), seed=4) * 1e-4))
    c.nodes.append(helper.make_node("Identity", [small], ["y"]))
    return build(c.nodes, {"x": SHAPE}, ["y"], c.constants)


def stored(job):
    """Return the precision of each tensor between primary functions."""
    return {p.tensor: p.stored_as for p in job.placements if not p.constant}


OPTIONS = {"target": "opencl", "device": "adreno", "dtype": "fp16", "accumulate": "fp32"}


@pytest.mark.onnxruntime
@pytest.mark.parametrize("inputs", [{"x": X}, "random"])
@pytest.mark.parametrize("storage", ["texture", "buffer"])
def test_what_overflows_stays_in_32_bits(model, inputs, storage, caplog):
    without = stored(compiled_until("storage", model, **OPTIONS, storage=storage))
    with caplog.at_level(logging.WARNING):
        job = compiled_until("storage", model, **OPTIONS, storage=storage, calibrate=inputs)
    found = stored(job)
    assert {name for name in found if found[name] != without[name]} == {"conv0"}
    assert "conv0" not in job.halves
    (place,) = (p for p in job.placements if p.tensor == "conv0")
    assert place.stored_as == "float32"
    assert "in 32 bits: measured: up to" in place.reason
    assert "Calibration keeps 1 of 3 tensors in 32 bits, which take 320 B more" in caplog.text
    assert "conv0: up to" in caplog.text


@pytest.mark.onnxruntime
def test_inputs_that_need_nothing(model, caplog):
    with caplog.at_level(logging.WARNING):
        job = compiled_until("storage", model, **OPTIONS, calibrate={"x": X / 100})
    assert set(job.halves) >= {"conv0"}
    assert "Calibration keeps 0 of 3 tensors in 32 bits" in caplog.text


@pytest.mark.opencl
@pytest.mark.onnxruntime
@pytest.mark.parametrize("storage", ["texture", "buffer"])
def test_numbers(model, storage, tmp_path):
    path = tmp_path / "net.onnx"
    path.write_bytes(model.SerializeToString())
    reference, _ = run_reference(path, {"x": X}, ["y"])
    with tvmflow.compile(path, **OPTIONS, storage=storage, calibrate={"x": X}) as module:
        assert_close(module(x=X)["y"], reference["y"], STORED_AS_HALF)
    assert "calibrate" not in module.metadata["options"]


def test_an_estimate_warns(caplog):
    c = Chain(SHAPE, (1,))
    power = c.add("Exp", c.add("Conv", "x", c.constant(random((6, 6, 1, 1)))))
    y = c.add("Conv", power, c.constant(random((6, 6, 3, 3))))
    c.nodes.append(helper.make_node("Identity", [y], ["y"]))
    model = build(c.nodes, {"x": SHAPE}, ["y"], c.constants)
    with caplog.at_level(logging.WARNING):
        compiled_until("storage", model, **OPTIONS)
    assert "16 bits may not hold 1 tensor: exp1 (an exponential). `calibrate`" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        compiled_until("storage", model, **OPTIONS | {"dtype": "fp32"})
    assert not caplog.text


def test_networks_as_they_are_give_no_warning(model, caplog):
    with caplog.at_level(logging.WARNING):
        compiled_until("storage", model, **OPTIONS)
    assert not caplog.text


def test_options_are_checked():
    with pytest.raises(TargetError, match="Calibration was asked for with tensors in fp32"):
        CompileOptions(target="opencl", calibrate="random").resolve()
    with pytest.raises(TargetError, match="random"):
        CompileOptions(target="opencl", dtype="fp16", calibrate="inputs.npz").resolve()
    with pytest.raises(CompileError, match="is of type ndarray"):
        CompileOptions(dtype="fp16", calibrate=np.zeros(3))


@pytest.mark.onnxruntime
@pytest.mark.parametrize("in_file", [True, False])
def test_of_what_options_make_of_a_model(tmp_path, in_file):
    """Another output, a bound input, and names that exporters write."""
    c = Chain(SHAPE, (1,))
    c.nodes += [
        helper.make_node("Mul", ["x", "factor"], ["/a/Mul"], "/a/Mul"),
        helper.make_node("Conv", ["/a/Mul", c.constant(random((6, 6, 1, 1)) * 1e-5)], ["y"], "/b"),
    ]
    model = build(c.nodes, {"x": SHAPE, "factor": ()}, ["y"], c.constants)
    if in_file:
        (tmp_path / "net.onnx").write_bytes(model.SerializeToString())
        model = tmp_path / "net.onnx"
    job = compiled_until(
        "storage", model, **OPTIONS, inputs={"factor": 3e4}, results={"y": "softmax"},
        calibrate={"x": X},
    )  # fmt: skip
    (place,) = (p for p in job.placements if p.tensor.startswith("_a_Mul"))
    assert (place.stored_as, "measured: up to" in place.reason) == ("float32", True)


@pytest.mark.onnxruntime
def test_of_several_shapes(model):
    value = model.graph.input[0].type.tensor_type.shape.dim[0]
    value.Clear()
    value.dim_param = "batch"
    shapes = {"x": ("1..2", *SHAPE[1:])}
    options = CompileOptions(**OPTIONS, shapes=shapes, calibrate={"x": X})
    parts = expand_variants(Compilation(model, options))
    for part in parts:
        run_stages(part, until="storage")
    kept = [p for part in parts for p in part.placements if p.tensor == "conv0"]
    assert [(p.shape[0], p.stored_as) for p in kept] == [(1, "float32"), (2, "float32")]
