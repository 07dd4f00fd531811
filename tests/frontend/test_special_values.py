"""NaN and infinities give the results of ONNX Runtime in every operator, on all targets."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest
from support.cuda_host import cuda_host
from support.drivers import Runner, processor_drivers
from support.special_values import CASES, NOT_COMPARED, OF_INTEGERS, network, references

import tvmflow
from tvmflow.frontend.ops import CONVERTERS
from tvmflow.verify.tolerance import OPERATOR, STORED_AS_HALF, compare, tolerance_for

pytestmark = pytest.mark.onnxruntime

#: Number of operators in one network.
_TOGETHER = 18


def groups():
    """Return the cases in groups, each of one operator set."""
    by_opset = {}
    for name, case in CASES.items():
        # Newer operator sets do not have Scatter and Upsample.
        by_opset.setdefault(case.opset if case.opset < 11 else 24, []).append(name)
    return [
        names[start : start + _TOGETHER]
        for names in by_opset.values()
        for start in range(0, len(names), _TOGETHER)
    ]


def check(names, outputs, *, half=False):
    """Compare all outputs with ONNX Runtime's; list those that differ."""
    wrong = {}
    for name, reference in references(names).items():
        output, table = outputs[name], STORED_AS_HALF if half else OPERATOR
        if half and reference.dtype == np.float32:
            output, reference = (_stored(array) for array in (output, reference))
        if not compare(name, output, reference, tolerance_for(reference.dtype.name, table)).passed:
            different = ~np.isclose(output, reference, 1e-2, equal_nan=True)
            wrong[name] = (output[different][:4], reference[different][:4])
    assert not wrong


def _stored(array):
    """Return the values with infinity for those beyond the range of fp16."""
    return np.where(np.abs(array) > 65504, np.copysign(np.float32(np.inf), array), array)


def test_every_operator_has_a_case():
    assert {case.operator for case in CASES.values()} == (
        set(CONVERTERS) - OF_INTEGERS - NOT_COMPARED
    )


@pytest.mark.parametrize("names", groups(), ids=lambda names: names[0].replace(" ", "_"))
def test_every_operator(names):
    model, feeds = network(names)
    with tvmflow.compile(model, target="llvm") as module:
        check(names, dict(module(feeds).items()))


#: Operators built from maxima, minima and comparisons, and each kind of reduction.
CRITICAL = [
    "Sign", "Relu", "Elu", "HardSwish", "Clip", "Clip from below", "Max", "Min of a limit", "PRelu",
    "LeakyRelu by zero", "Mul by zero", "Pow 0.5", "Pow 0.75", "Cast to bool", "Where",
    "ReduceLogSumExp (1,)",
    "ReduceMax (1,)", "ReduceMax (2, 3)", "ReduceMin (2, 3)", "ArgMax", "ArgMin last", "Softmax",
    "MaxPool", "MaxPool 3-D", "GlobalMaxPool", "AveragePool", "QuantizeLinear",
    "QuantizeLinear axis", "TopK", "Resize linear", "Resize cubic",
]  # fmt: skip

MODES = [
    pytest.param("cpu", "buffer", "fp32", id="cpu"),
    pytest.param("adreno", "texture", "fp16", id="half-texture"),
    pytest.param("mali", "buffer", "fp16", id="half-buffer", marks=pytest.mark.slow),
    pytest.param("adreno", "texture", "fp32", id="texture", marks=pytest.mark.slow),
    pytest.param("nvidia", "buffer", "fp32", id="nvidia", marks=pytest.mark.slow),
]


@pytest.mark.opencl
@pytest.mark.parametrize(("device", "storage", "dtype"), MODES)
def test_drivers(device, storage, dtype, tmp_path):
    """Results are right with blocked channels, buffers, textures, 32 and 16 bits on all drivers."""
    model, feeds = network(CRITICAL, blocked=True)
    path = tmp_path / "module.so"
    with tvmflow.compile(
        model, target="opencl", device=device, storage=storage, dtype=dtype, accumulate="fp32"
    ) as module:
        module.save(path)
    for driver in processor_drivers(quick=True):
        runner = Runner(driver.variables(driver.path))
        try:
            check(CRITICAL, runner(path, feeds), half=dtype == "fp16")
        finally:
            runner.close()


@pytest.mark.cuda_host
@pytest.mark.parametrize("dtype", ["fp32", pytest.param("fp16", marks=pytest.mark.slow)])
def test_cuda(dtype):
    names = [name for name in CRITICAL if name != "TopK"]
    model, feeds = network(names, blocked=True)
    with closing(tvmflow.compile(model, target="cuda", dtype=dtype)) as module:
        check(names, dict(cuda_host()(module, feeds).items()), half=dtype == "fp16")
