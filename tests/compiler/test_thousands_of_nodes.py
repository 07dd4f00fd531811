"""Chains of thousands of operators: their functions are bounded, and so is what compiles them."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import helper
from support.first_stages import compiled_until
from support.operators import build
from tvm import tirx

import tvmflow
from tvmflow.compiler.passes import MOST_FUSED
from tvmflow.verify.tolerance import OPERATOR, assert_close

pytestmark = pytest.mark.onnxruntime


def chain(count, *operators, shape=(2, 4, 3)):
    """Return a network of nodes that each read the result of the node before."""
    rng = np.random.default_rng(7)
    nodes, constants = [], {}
    for index in range(count):
        op_type, *others = operators[index % len(operators)]
        if others == ["constant"]:
            others = [f"c{index}"]
            constants[others[0]] = rng.uniform(-1, 1, shape[-1:]).astype("f4")
        inputs = [f"v{index - 1}" if index else "x", *others]
        nodes.append(helper.make_node(op_type, inputs, [f"v{index}"]))
    nodes.append(helper.make_node("Identity", [f"v{count - 1}"], ["y"]))
    is_read = any("z" in node.input for node in nodes)
    return build(nodes, dict.fromkeys("xz" if is_read else "x", shape), ["y"], constants)


MIXED = (("Relu",), ("Add", "constant"), ("Mul", "constant"), ("Sigmoid",))
#: Each maximum has a name for its first operand, which code generation analyses twice.
EXTREMES = (("Max", "z"), ("Mul", "z"))
TARGETS = ["llvm", pytest.param("opencl", marks=pytest.mark.opencl)]


def check(model, rng, **options):
    feeds = {i.name: rng.standard_normal((2, 4, 3)).astype("f4") for i in model.graph.input}
    (wanted,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)
    with tvmflow.compile(model, **options) as module:
        assert_close(module(feeds)["y"], wanted, OPERATOR)


@pytest.mark.slow
@pytest.mark.parametrize("format", ["tvm", "standalone"])
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("count", "operators"),
    [(600, MIXED), (60, EXTREMES), (130, [("Sigmoid",)])],
    ids=["mixed", "extremes", "levels"],
)
def test_chain(count, operators, target, format, rng):
    """OpenCL's compilers take 256 brackets within each other, of which a sigmoid has four."""
    check(chain(count, *operators), rng, target=target, format=format)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_thousands_of_operators(target, rng):
    check(chain(5000, *MIXED), rng, target=target)


def test_functions_of_a_chain_are_bounded():
    """Each has at most the operators, and so the arguments, that kernels may have."""
    job = compiled_until("fuse", chain(300, *MIXED), target="llvm")
    functions = [f for f in job.mod.functions.values() if isinstance(f, tirx.PrimFunc)]
    # At least one operator of a function reads no constant.
    assert max(len(function.params) for function in functions) <= MOST_FUSED
