"""Every operator that the front end registers is generated, or a line says why it is not."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from contexts import POSITIONS, network
from fuzzer import OPSETS
from generators import EXCLUDED, RULES, available, drawn, rule_of
from graphs import InvalidError
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from oracle import NoReferenceError, Oracle

from tvmflow.frontend.dynamic import MAKERS
from tvmflow.frontend.ops import CONVERTERS

QUIET = settings(
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],
    max_examples=8,
)


@pytest.mark.parametrize("operator", sorted({*CONVERTERS, *MAKERS}))
def test_is_drawn_or_excluded(operator):
    assert (rule_of(operator) is None) == (operator in EXCLUDED)
    if operator in EXCLUDED:
        assert len(EXCLUDED[operator]) > 20


def test_every_rule_is_of_a_registered_operator():
    assert set(RULES) | set(EXCLUDED) <= {*CONVERTERS, *MAKERS}


def test_every_operator_is_in_an_operator_set():
    assert not [o for o in drawn() if not any(available(o, opset) for opset in OPSETS)]


def test_a_new_elementwise_operator_is_drawn_by_its_schema():
    """``Swish`` and others have no rule in `RULES`."""
    assert "Swish" not in RULES
    assert rule_of("Swish") is not None
    assert rule_of("Unique") is None


@pytest.mark.onnxruntime
@pytest.mark.parametrize("operator", drawn())
def test_is_drawn_as_valid_onnx(operator):
    """Most draws are valid, keep the inferred types, and have a reference."""
    opset = next(o for o in OPSETS if available(operator, o))
    good = []

    @QUIET
    @seed(7)
    @given(st.data())
    def draw(data):
        position = data.draw(st.sampled_from(sorted(POSITIONS)))
        try:
            n = network(data.draw, operator, position, opset)
            onnx.checker.check_model(n.model)
            oracle = Oracle(n)
        except (InvalidError, NoReferenceError):
            return
        assert any(node.op_type == operator for node in n.nodes)
        for tensor in n.outputs:
            assert oracle.reference[tensor.name].shape == tensor.shape
            assert oracle.reference[tensor.name].dtype == np.dtype(tensor.dtype)
        good.append(n)

    draw()
    assert len(good) >= 5
