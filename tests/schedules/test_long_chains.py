"""Chains of elementwise operators that are read twice each: in place, they would grow forever."""

from __future__ import annotations

import numpy as np
import operators
import pytest
from onnx import helper


@pytest.mark.parametrize(
    ("target", "device"),
    [("llvm", "cpu"), pytest.param("opencl", "adreno", marks=pytest.mark.opencl)],
)
def test_a_chain_that_is_read_twice_at_each_step_is_not_written_out(target, device):
    """Thirty steps are ten million expressions."""
    nodes, last = [], "input"
    for step in range(30):
        whole, sum_, half = f"whole{step}", f"sum{step}", f"half{step}"
        nodes.append(helper.make_node("Floor", [last], [whole]))
        nodes.append(helper.make_node("Add", [last, whole], [sum_]))
        nodes.append(helper.make_node("Mul", [sum_, "scale"], [half]))
        last = half
    nodes[-1].output[0] = "output"
    model = operators.build(nodes, {"input": (7, 9)}, ["output"], {"scale": np.float32(0.5)})
    assert set(operators.check(model, target, device)) == {"fallback"}
