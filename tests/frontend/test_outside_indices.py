"""Indices out of range, which ONNX forbids, are clamped; nothing outside is read or written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import pytest
from reference import evaluator_results, node_model, onnxruntime_results

import tvmflow
from tvmflow.errors import InputError, ModelError
from tvmflow.frontend.converter import CONVERTERS
from tvmflow.frontend.index_checks import PLACES as INDEXED
from tvmflow.verify.tolerance import assert_close

RNG = np.random.default_rng(43)
#: Indices far or just outside, and where 32 bits or a sum with the extent overflow.
OUTSIDE = (2**31 - 1, -(2**31), 5, 7, -6, -8, 100, -100)
FAR = (2**63 - 1, -(2**63), 2**40, -(2**40), 2**32, -(2**32), 2**32 + 1, 2**31)


def real(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


@dataclass(frozen=True)
class Case:
    """An operator, its other inputs, and the range of its indices."""

    operator: str
    #: Inputs, with the shape of the indices in their place.
    inputs: tuple[Any, ...]
    #: Position of the indices among the inputs.
    place: int
    #: Function that returns the nearest indices in range.
    nearest: Callable[[np.ndarray], np.ndarray]
    opset: int = 18
    attributes: Mapping[str, Any] | None = None
    results: int = 1
    dtype: str = "int64"
    #: Whether indices must be unique, as the order of writing is undefined.
    writes: bool = False

    def model(self, indices: np.ndarray, *, constant: bool = False):
        values = [(value, False) for value in self.inputs]
        values[self.place] = indices, constant
        names = {"opset": self.opset, "results": self.results, **(self.attributes or {})}
        return node_model(self.operator, values, **names)


def within(low: int, high: int) -> Callable[[np.ndarray], np.ndarray]:
    return lambda indices: np.clip(indices, low, high)


def tuples(*extents: int) -> Callable[[np.ndarray], np.ndarray]:
    ends = np.array(extents)
    return lambda indices: np.clip(indices, -ends, ends - 1)


CASES = {
    "Gather": Case("Gather", (real(5, 3, 7), (4, 2)), 1, within(-3, 2), attributes={"axis": 1}),
    "Gather 32": Case("Gather", (real(5, 3), (9,)), 1, within(-5, 4), dtype="int32"),
    "GatherElements": Case(
        "GatherElements", (real(4, 5, 3), (4, 6, 3)), 1, within(-5, 4), attributes={"axis": 1}
    ),
    "GatherElements 32": Case(
        "GatherElements", (real(7, 5), (6, 5)), 1, within(-7, 6), dtype="int32"
    ),
    "GatherND": Case("GatherND", (real(3, 4, 5), (6, 2)), 1, tuples(3, 4)),
    "GatherND of batches": Case(
        "GatherND", (real(2, 3, 4), (2, 5, 2)), 1, tuples(3, 4), attributes={"batch_dims": 1}
    ),
    "ScatterElements add": Case(
        "ScatterElements", (real(4, 5), (3, 5), real(3, 5)), 1, within(-4, 3),
        attributes={"axis": 0, "reduction": "add"},
    ),
    "ScatterElements": Case(
        "ScatterElements", (real(3, 9), (3, 1), real(3, 1)), 1, within(-9, 8),
        attributes={"axis": 1}, writes=True,
    ),
    "Scatter": Case(
        "Scatter", (real(3, 9), (3, 1), real(3, 1)), 1, within(-9, 8), opset=10,
        attributes={"axis": 1}, writes=True,
    ),
    "ScatterND add": Case(
        "ScatterND", (real(3, 4, 5), (6, 2), real(6, 5)), 1, tuples(3, 4),
        attributes={"reduction": "add"},
    ),
    "ScatterND": Case(
        "ScatterND", (real(6, 5), (1, 1), real(1, 5)), 1, tuples(6), writes=True
    ),
    "MaxUnpool": Case(
        "MaxUnpool", (np.abs(real(1, 1, 1, 1)), (1, 1, 1, 1)), 1, within(0, 3),
        attributes={"kernel_shape": [2, 2], "strides": [2, 2]}, writes=True,
    ),
    "RoiAlign": Case(
        "RoiAlign", (real(3, 5, 6, 6), RNG.uniform(0, 5, (7, 4)).astype("f4"), (7,)), 2,
        within(0, 2), attributes={"sampling_ratio": 2, "output_height": 2, "output_width": 3},
    ),
    "RoiAlign of maxima": Case(
        "RoiAlign", (real(3, 5, 6, 6), RNG.uniform(0, 5, (7, 4)).astype("f4"), (7,)), 2,
        within(0, 2), attributes={"sampling_ratio": 2, "mode": "max"},
    ),
    "RoiAlign of all samples": Case(
        "RoiAlign", (real(3, 5, 6, 6), RNG.uniform(0, 5, (7, 4)).astype("f4"), (7,)), 2,
        within(0, 2), attributes={"sampling_ratio": 0},
    ),
    "ReverseSequence": Case("ReverseSequence", (real(6, 9, 2), (9,)), 1, within(0, 6)),
    "RotaryEmbedding": Case(
        "RotaryEmbedding", (real(2, 1, 3, 4), real(6, 2), real(6, 2), (2, 3)), 3, within(0, 5),
        opset=23,
    ),
    "TensorScatter": Case(
        "TensorScatter", (real(4, 2, 8, 3), real(4, 2, 3, 3), (4,)), 2, within(0, 5), opset=24
    ),
    "NegativeLogLikelihoodLoss": Case(
        "NegativeLogLikelihoodLoss", (real(9, 4), (9,), real(4)), 1, within(0, 3)
    ),
    "SoftmaxCrossEntropyLoss": Case(
        "SoftmaxCrossEntropyLoss", (real(9, 4), (9,)), 1, within(0, 3), results=2,
        attributes={"reduction": "none"},
    ),
    **{
        operator: Case(
            operator, (real(4, 8, 3), real(1, gates * 5, 3), real(1, gates * 5, 5), None, (8,)), 4,
            within(0, 4), attributes={"hidden_size": 5}, results=2, dtype="int32",
        )
        for operator, gates in (("LSTM", 4), ("GRU", 3), ("RNN", 1))
    },
}  # fmt: skip

#: Integer inputs that are not indices, or that must be constant.
NO_INDICES = {
    "Attention": "a length that masks scores",
    "QLinearConv": "a bias",
    "Loop": "a number of repetitions",
    "NonMaxSuppression": "a limit",
    **dict.fromkeys(
        ("AffineGrid", "CenterCropPad", "Col2Im", "Expand", "Pad", "Reshape", "Resize", "Slice",
         "Split", "Squeeze", "Tile", "TopK", "Trilu", "Unsqueeze", "CumProd", "CumSum", "DFT",
         "STFT", "OneHot", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax",
         "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare"),
        "constant",
    ),
}  # fmt: skip

PLACES = [
    pytest.param({"target": "llvm"}, id="llvm"),
    pytest.param({"target": "opencl"}, id="opencl", marks=pytest.mark.opencl),
    pytest.param(
        {"target": "opencl", "device": "adreno", "storage": "texture"},
        id="texture",
        marks=pytest.mark.opencl,
    ),
]


def indices_of(case: Case) -> np.ndarray:
    """Return alternating indices in and out of range."""
    shape = case.inputs[case.place]
    outside = (*OUTSIDE, *FAR) if case.dtype == "int64" else OUTSIDE
    count = int(np.prod(shape))
    good = RNG.integers(-2, 2, count)
    bad = np.resize(RNG.permutation(np.array(outside, object)), count)
    return np.where(RNG.random(count) < 0.4, good, bad).astype(case.dtype).reshape(shape)


def expected(case: Case, indices: np.ndarray) -> list[np.ndarray]:
    model, feeds = case.model(case.nearest(indices).astype(case.dtype))
    results = onnxruntime_results(model, feeds) or evaluator_results(model, feeds)
    assert results is not None
    return results


@pytest.mark.onnxruntime
@pytest.mark.parametrize("options", PLACES)
@pytest.mark.parametrize("name", CASES)
def test_the_nearest_in_range_counts(name: str, options: dict[str, Any]):
    case = CASES[name]
    found = None
    for _ in range(4):
        indices = indices_of(case)
        model, feeds = case.model(indices)
        if found is None:
            found = tvmflow.compile(model, **options)
        outputs = found(**feeds)
        for info, reference in zip(found.outputs, expected(case, indices), strict=True):
            assert_close(outputs[info.name], reference)
    found.close()


@pytest.mark.oclgrind
@pytest.mark.parametrize("name", CASES)
def test_kernels_read_and_write_nothing_outside(name: str, under_oclgrind):
    case = CASES[name]
    model, feeds = case.model(indices_of(case))
    with tvmflow.compile(model, target="opencl", device="mali") as module:
        under_oclgrind()(module, feeds)


@pytest.mark.parametrize("name", ["Gather", "GatherND", "ScatterElements", "RoiAlign"])
def test_constant_ones_are_refused(name: str):
    case = CASES[name]
    indices = np.full(case.inputs[case.place], 50, case.dtype)
    model, _ = case.model(indices, constant=True)
    with pytest.raises(ModelError, match="a constant index is out of range"):
        tvmflow.compile(model)


def test_every_operator_with_indices_is_here():
    """ONNX's schemas list the inputs that may only be int32 or int64."""
    integers = {"tensor(int32)", "tensor(int64)"}
    have = {
        schema.name
        for schema in onnx.defs.get_all_schemas_with_history()
        if not schema.domain and any(set(i.types) <= integers for i in schema.inputs)
    }
    known = {*NO_INDICES, *(case.operator for case in CASES.values())}
    assert have & set(CONVERTERS) <= known
    assert {case.operator for case in CASES.values()} == set(INDEXED)
    assert not set(INDEXED) & set(NO_INDICES)


@pytest.mark.parametrize("name", CASES)
def test_check_indices_names_the_node_and_the_index(name: str):
    case = CASES[name]
    right = np.broadcast_to(case.nearest(np.array(1)), case.inputs[case.place]).astype(case.dtype)
    model, feeds = case.model(right)
    with tvmflow.compile(model, target="llvm", check_indices=True) as module:
        assert [info.name for info in module.outputs] == [o.name for o in model.graph.output]
        module(**feeds)
        for at, outside in ((0, 100), (-1, -100)):
            wrong = right.copy()
            wrong.flat[at] = outside
            with pytest.raises(InputError, match=rf"'node' has the index {outside} for"):
                module(**feeds | {f"x{case.place}": wrong})


@pytest.mark.cross
def test_check_indices_in_standalone_libraries():
    """Callers of the library's C interface get one more output."""
    case = CASES["ScatterND add"]
    model, feeds = case.model(np.zeros((6, 2), np.int64))
    options = {"target": "llvm", "format": "standalone", "check_indices": True}
    with tvmflow.compile(model, **options) as module:
        module(**feeds)
        feeds["x1"][3, 1] = -5
        with pytest.raises(InputError, match=r"'node' has the index -5 for .* from -4 to 3"):
            module(**feeds)
