"""Integers of 8 and 16 bits wrap around in kernels, where C would make them wider."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

import tvmflow

KINDS = {"uint8": TensorProto.UINT8, "int8": TensorProto.INT8, "int16": TensorProto.INT16}


def model(kind):
    """Sums, products and complements of narrow integers, as numbers of 32 bits and compared."""
    element = KINDS[kind]
    nodes = [
        helper.make_node("Add", ["a", "b"], ["sum"]),
        helper.make_node("Sub", ["a", "b"], ["difference"]),
        helper.make_node("Mul", ["a", "b"], ["product"]),
        helper.make_node("BitwiseNot", ["a"], ["complement"]),
        helper.make_node("Less", ["sum", "a"], ["wrapped"]),
    ]
    numbers = ["sum", "difference", "product", "complement"]
    if kind == "uint8":
        nodes.append(helper.make_node("BitShift", ["a", "b"], ["shifted"], direction="LEFT"))
        numbers.append("shifted")
    nodes += [helper.make_node("Cast", [n], [f"{n}_f"], to=TensorProto.FLOAT) for n in numbers]
    outputs = [helper.make_tensor_value_info(f"{n}_f", TensorProto.FLOAT, None) for n in numbers]
    outputs.append(helper.make_tensor_value_info("wrapped", TensorProto.BOOL, None))
    inputs = [helper.make_tensor_value_info(n, element, [3, 7]) for n in "ab"]
    return helper.make_model(
        helper.make_graph(nodes, "narrow", inputs, outputs),
        opset_imports=[helper.make_opsetid("", 18)],
        ir_version=9,
    )


@pytest.mark.parametrize("target", ["llvm", pytest.param("opencl", marks=pytest.mark.opencl)])
@pytest.mark.parametrize("kind", KINDS)
def test_narrow_integers_wrap_around(kind, target):
    limits = np.iinfo(kind)
    rng = np.random.default_rng(5)
    a, b = (
        rng.integers(limits.min, limits.max, (3, 7), dtype=kind, endpoint=True) for _ in range(2)
    )
    a[0, :2], b[0, :2] = (limits.max, limits.min), (1, 1)
    if kind == "uint8":
        b %= 8
    network = model(kind)
    session = onnxruntime.InferenceSession(network.SerializeToString())
    expected = dict(
        zip(
            (o.name for o in session.get_outputs()),
            session.run(None, {"a": a, "b": b}),
            strict=True,
        )
    )
    with tvmflow.compile(network, target=target, device="auto") as module:
        outputs = module(a=a, b=b)
        for name, values in expected.items():
            np.testing.assert_array_equal(outputs[name], values, name)
