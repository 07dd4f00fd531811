"""Integers of 8 and 16 bits wrap around in kernels, where C would make them wider."""

from __future__ import annotations

import numpy as np
import pytest
from support.onnx_models import expected, model_of

import tvmflow


def network(kind):
    """Sums, products and complements of narrow integers, as numbers of 32 bits and compared."""
    nodes = """
        sum = Add(a, b) difference = Sub(a, b) product = Mul(a, b) complement = BitwiseNot(a)
        wrapped = Less(sum, a)
    """
    numbers = ["sum", "difference", "product", "complement"]
    if kind == "uint8":
        nodes += 'shifted = BitShift<direction = "LEFT">(a, b) '
        numbers.append("shifted")
    nodes += " ".join(f"{name}_f = Cast<to = 1>({name})" for name in numbers)
    outputs = [f"{name}_f" for name in numbers] + ["wrapped"]
    return model_of(nodes, dict.fromkeys("ab", ((3, 7), kind)), outputs, opset=18)


@pytest.mark.parametrize("target", ["llvm", pytest.param("opencl", marks=pytest.mark.opencl)])
@pytest.mark.parametrize("kind", ["uint8", "int8", "int16"])
def test_narrow_integers_wrap_around(kind, target):
    limits = np.iinfo(kind)
    rng = np.random.default_rng(5)
    a, b = (
        rng.integers(limits.min, limits.max, (3, 7), dtype=kind, endpoint=True) for _ in range(2)
    )
    a[0, :2], b[0, :2] = (limits.max, limits.min), (1, 1)
    if kind == "uint8":
        b %= 8
    model = network(kind)
    names = [output.name for output in model.graph.output]
    right = dict(zip(names, expected(model, {"a": a, "b": b}), strict=True))
    with tvmflow.compile(model, target=target, device="auto") as module:
        outputs = module(a=a, b=b)
        for name, values in right.items():
            np.testing.assert_array_equal(outputs[name], values, name)
