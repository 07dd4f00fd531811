"""The self-test's reference: its source, and plans without one."""

from __future__ import annotations

import numpy as np
import pytest
from support.planned import parsed, plan_of

from tvmflow.compiler.standalone import self_test
from tvmflow.errors import ModelError
from tvmflow.module.standalone.encode import encode
from tvmflow.module.standalone.format import Section
from tvmflow.module.standalone.read import read_plan
from tvmflow.module.standalone.weights_file import write_weights

pytestmark = pytest.mark.onnxruntime


@pytest.fixture
def model():
    """Return a network with a weight of 400 bytes."""
    weight = ", ".join(str(number / 7 - 3) for number in range(100))
    constants = f"float[100] w = {{{weight}}}"
    return parsed("float[6,100] x", "float[6,100] y", "s = Sin(x) y = Mul(s, w)", constants)


def test_without_onnx_runtime_the_target_llvm_is_the_reference(model, monkeypatch):
    usual = plan_of(model)
    assert usual.metadata["reference"].startswith("ONNX Runtime ")
    monkeypatch.setattr(self_test, "find_spec", lambda name: None)
    plan = plan_of(model)
    assert plan.metadata["reference"] == "tvmflow's llvm target"
    expected, got = usual.test_outputs[0].values, plan.test_outputs[0].values
    assert not np.array_equal(expected, got)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_a_model_that_nothing_runs_has_no_self_test(model, monkeypatch, caplog):
    def fail(*_):
        raise ModelError("It cannot be run.")

    monkeypatch.setattr(self_test, "reference_outputs", fail)
    plan = plan_of(model)
    assert (plan.test_inputs, plan.test_outputs) == ([], [])
    assert "no self-test: It cannot be run." in caplog.text


def test_large_weights_are_not_run(model, monkeypatch, caplog, tmp_path):
    monkeypatch.setattr(self_test, "REFERENCE_LIMIT_BYTES", 399)
    monkeypatch.setattr(self_test, "reference_outputs", None)
    plan = plan_of(model)
    assert "more than its 400 B of weights" in caplog.text
    content = read_plan(encode(plan, write_weights(tmp_path / "weights", plan.weights)))
    assert len(content[Section.TEST_INPUTS]) == len(content[Section.TEST_OUTPUTS]) == 0


@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_quantized_networks_in_half_have_none(dtype, caplog):
    """Rounding to halves moves numbers by whole steps of 8 bits, on every device."""
    model = parsed(
        "float[6,100] x",
        "float[6,100] y",
        "q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z)",
        "float s = {0.02}, uint8 z = {128}",
    )
    plan = plan_of(model, dtype=dtype)
    assert bool(plan.test_outputs) == (dtype == "fp32")
    assert ("no self-test: with `dtype=fp16` a quantized" in caplog.text) == (dtype == "fp16")


def test_weights_lie_aligned_behind_their_header(tmp_path):
    generator = np.random.default_rng(2)
    weights = {
        "a": generator.standard_normal(33).astype(np.float32),
        "b": generator.integers(0, 9, (3, 5)).astype(np.int64),
        "c": generator.standard_normal((4, 70, 3)).astype(np.float16).transpose(1, 0, 2),
    }
    written = write_weights(tmp_path / "weights", weights)
    content = (tmp_path / "weights").read_bytes()
    assert written.bytes == len(content)
    for name, weight in weights.items():
        begin, size = written.offsets[name], weight.nbytes
        assert begin % 128 == 0
        assert content[begin : begin + size] == weight.tobytes()
