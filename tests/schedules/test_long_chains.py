"""Chains of elementwise operators that are each read twice, whose inlining would take forever."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper
from support import operators

TARGETS = pytest.mark.parametrize(
    ("target", "device"),
    [("llvm", "cpu"), pytest.param("opencl", "adreno", marks=pytest.mark.opencl)],
)


@TARGETS
def test_a_chain_that_is_read_twice_at_each_step_is_not_inlined(target, device):
    """Inlining thirty steps would give ten million expressions."""
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


@TARGETS
def test_nested_conditions_do_not_stall_the_simplifier(target, device):
    """TVM's simplifier takes seven seconds for six nested conditions."""
    nodes, last = [], "input"
    for step in range(8):
        test, chosen, moved = f"test{step}", f"chosen{step}", f"moved{step}"
        nodes.append(helper.make_node("Less", ["limit", last], [test]))
        nodes.append(helper.make_node("Where", [test, last, "other"], [chosen]))
        nodes.append(helper.make_node("Sub", [chosen, "moves"], [moved]))
        last = moved
    nodes[-1].output[0] = "output"
    rng = np.random.default_rng(0)
    constants = {
        "limit": np.float32(-1),
        "other": rng.standard_normal((7, 9), dtype=np.float32),
        "moves": rng.random((7, 9), dtype=np.float32) / 4,
    }
    model = operators.build(nodes, {"input": (7, 9)}, ["output"], constants)
    operators.check(model, target, device)
