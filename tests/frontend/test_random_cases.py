"""Random operators agree with ONNX Runtime, or are refused for a known reason."""

from __future__ import annotations

import numpy as np
import pytest
from random_operators import OPERATORS
from random_resize import resize
from random_sequences import SEQUENCES
from random_shapes import SHAPES
from random_windows import WINDOWS, Random
from reference import evaluator_results, judge, node_model, onnxruntime_results

FAMILIES = {**WINDOWS, "Resize": resize, **OPERATORS, **SHAPES, **SEQUENCES}

#: Reasons for which a node may be refused although ONNX Runtime accepts it.
REASONS = (
    "ambiguous",
    "where rounding errors decide",
    "the kernel is too large",
    "values are not supported",
    "interpolating",
    "cubic samples of volumes",
)

#: ONNX Runtime's Col2Im is wrong for three axes whose padding or strides differ.
ONLY_EVALUATED = ("Col2Im",)

RESULTS = {
    "TopK": 2, "DynamicQuantizeLinear": 3, "MaxPool": 2, "SoftmaxCrossEntropyLoss": 2,
    "LinearAttention": 2, "CausalConvWithState": 2,
}  # fmt: skip


def draw(family: str, seed: int):
    """Draw a case; return its model, inputs, right results or ``None``, and description."""
    op_type, values, attributes, opset = FAMILIES[family](Random(seed))
    results = 1 if (op_type, opset) == ("MaxPool", 7) else RESULTS.get(op_type, 1)
    model, feeds = node_model(op_type, values, opset, results, **attributes)
    shapes = [v if v is None else (v.shape, v.dtype) for v, _ in values]
    expected = None if op_type in ONLY_EVALUATED else onnxruntime_results(model, feeds)
    if expected is None and family in SEQUENCES:
        expected = evaluator_results(model, feeds)
    return model, feeds, expected, (op_type, opset, shapes, attributes)


def check(family: str, seed: int) -> bool:
    """Check one case; return whether it is computed, not refused."""
    model, feeds, expected, described = draw(family, seed)
    try:
        with np.errstate(all="ignore"):
            refusal = judge(model, feeds, expected)
    except Exception as error:
        raise AssertionError(f"seed {seed}: {described}") from error
    if refusal is not None and expected is not None:
        assert any(reason in refusal for reason in REASONS), (seed, described, refusal)
    return refusal is None


@pytest.mark.onnxruntime
@pytest.mark.parametrize("family", FAMILIES)
def test_some(family):
    right = sum(check(family, seed) for seed in range(4))
    assert right > 0


@pytest.mark.slow
@pytest.mark.onnxruntime
@pytest.mark.parametrize("family", FAMILIES)
def test_many(family):
    count = 200
    right = sum(check(family, seed) for seed in range(100, 100 + count))
    print(f"{family}: {right} of {count} right, the others refused")
    assert right > 0.7 * count
