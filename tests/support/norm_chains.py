"""Normalisations and statistics that exporters write as primitives, and chains like them.

Every form is a function from a `Chain` and the name of a tensor to the name of the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
import onnx
from onnx import helper

EPSILON = 1e-3


def _numbers(shape: Sequence[int], scale: float, seed: int) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


class Chain:
    """Builder of nodes: `add` emits one, `constant` an initializer."""

    def __init__(self, shape: Sequence[int], axes: Sequence[int], opset: int = 17):
        self.shape, self.axes, self.opset = tuple(shape), tuple(axes), opset
        self.length = prod(shape[a] for a in axes)
        self.kept = tuple(1 if a in axes else d for a, d in enumerate(shape))
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, np.ndarray] = {}

    def add(self, operator: str, *inputs: str | float, **attributes: Any) -> str:
        """Emit a node; numbers become initializers."""
        name = f"{operator.lower()}{len(self.nodes)}"
        operands = [i if isinstance(i, str) else self.constant(np.float32(i)) for i in inputs]
        self.nodes.append(helper.make_node(operator, operands, [name], name, **attributes))
        return name

    def constant(self, array: Any) -> str:
        """Add an initializer."""
        name = f"k{len(self.constants)}"
        self.constants[name] = np.asarray(array)
        return name

    def reduce(self, operator: str, x: str, keepdims: int = 1) -> str:
        """Add a reduction over the chain's axes, given as an input or as an attribute."""
        if self.opset >= 18 or operator == "ReduceSum":
            return self.add(operator, x, self.constant(np.array(self.axes)), keepdims=keepdims)
        return self.add(operator, x, axes=list(self.axes), keepdims=keepdims)

    def affine(self) -> tuple[str, str]:
        """Return scale and bias of the last reduced axis, or of channels."""
        axis = self.axes[-1] if self.axes[-1] == len(self.shape) - 1 else 1
        shape = [d if a == axis else 1 for a, d in enumerate(self.shape)]
        while shape and shape[0] == 1:
            shape.pop(0)
        return self.constant(_numbers(shape, 0.3, 3) + 1), self.constant(_numbers(shape, 0.3, 4))


Form = Callable[[Chain, str], str]


def torch_layer(c: Chain, x: str) -> str:
    """Write PyTorch's form before operator set 17."""
    scale, bias = c.affine()
    centred = c.add("Sub", x, c.reduce("ReduceMean", x))
    variance = c.reduce("ReduceMean", c.add("Pow", centred, 2.0))
    normal = c.add("Div", centred, c.add("Sqrt", c.add("Add", variance, EPSILON)))
    return c.add("Add", c.add("Mul", normal, scale), bias)


def tf_layer(c: Chain, x: str) -> str:
    """Write ``tf.nn.moments`` and ``tf.nn.batch_normalization``, like Keras's layers."""
    scale, bias = c.affine()
    mean = c.reduce("ReduceMean", x)
    difference = c.add("Sub", x, mean)
    variance = c.reduce("ReduceMean", c.add("Mul", difference, difference))
    root = c.add("Sqrt", c.add("Add", variance, EPSILON))
    factor = c.add("Mul", c.add("Reciprocal", root), scale)
    shift = c.add("Sub", bias, c.add("Mul", mean, factor))
    return c.add("Add", c.add("Mul", x, factor), shift)


def jax_layer(c: Chain, x: str) -> str:
    """Write Flax's E[x²] - E[x]², whose reductions drop their axes."""
    scale, bias = c.affine()
    shape = c.constant(np.array(c.kept))
    sums = c.reduce("ReduceSum", x, keepdims=0)
    squares = c.reduce("ReduceSum", c.add("Mul", x, x), keepdims=0)
    mean, square = (c.add("Div", total, float(c.length)) for total in (sums, squares))
    variance = c.add("Max", c.add("Sub", square, c.add("Mul", mean, mean)), 0.0)
    mean, variance = (c.add("Reshape", each, shape) for each in (mean, variance))
    inverse = c.add("Div", 1.0, c.add("Sqrt", c.add("Add", variance, EPSILON)))
    return c.add("Add", c.add("Mul", c.add("Sub", x, mean), c.add("Mul", inverse, scale)), bias)


def jax_expanded(c: Chain, x: str) -> str:
    """Write the same with sums multiplied by 1/n, and statistics that are expanded."""
    full = c.constant(np.array(c.shape))
    mean = c.add("Mul", c.reduce("ReduceSum", x), 1 / c.length)
    square = c.add("Mul", c.reduce("ReduceSumSquare", x), 1 / c.length)
    variance = c.add("Sub", square, c.add("Mul", mean, mean))
    inverse = c.add("Pow", c.add("Add", variance, EPSILON), -0.5)
    centred = c.add("Sub", x, c.add("Expand", mean, full))
    return c.add("Mul", centred, c.add("Expand", inverse, full))


def rms(c: Chain, x: str) -> str:
    """Write a root mean square as in language models."""
    scale, _ = c.affine()
    square = c.reduce("ReduceMean", c.add("Pow", x, 2.0))
    inverse = c.add("Div", 1.0, c.add("Sqrt", c.add("Add", square, EPSILON)))
    return c.add("Mul", scale, c.add("Mul", x, inverse))


def rms_divided(c: Chain, x: str) -> str:
    """Write a root mean square with a division."""
    square = c.reduce("ReduceMean", c.add("Mul", x, x))
    return c.add("Div", x, c.add("Sqrt", c.add("Add", square, EPSILON)))


#: Forms that become one primary function of normalisation.
NORMALISATIONS: dict[str, Form] = {
    "torch": torch_layer, "tf": tf_layer, "jax": jax_layer, "jax_expanded": jax_expanded,
    "rms": rms, "rms_divided": rms_divided,
}  # fmt: skip


def deviation(c: Chain, x: str) -> str:
    """Write an epsilon after the root, and the unbiased deviation of ``torch.std``."""
    centred = c.add("Sub", x, c.reduce("ReduceMean", x))
    total = c.reduce("ReduceSum", c.add("Mul", centred, centred))
    root = c.add("Sqrt", c.add("Div", total, float(max(c.length - 1, 1))))
    return c.add("Div", centred, c.add("Add", root, 1e-5))


def unit_length(c: Chain, x: str) -> str:
    """Write ``torch.nn.functional.normalize``."""
    return c.add("Div", x, c.add("Max", c.reduce("ReduceL2", x), 1e-12))


def pooled_statistics(c: Chain, x: str) -> str:
    """Concatenate mean and deviation, as speaker and file-type networks pool frames."""
    mean = c.reduce("ReduceMean", x)
    square = c.reduce("ReduceMean", c.add("Mul", x, x))
    variance = c.add("Sub", square, c.add("Mul", mean, mean))
    root = c.add("Sqrt", c.add("Max", variance, EPSILON))
    return c.add("Concat", mean, root, axis=1)


def share(c: Chain, x: str) -> str:
    """Write a softmax without its maximum."""
    power = c.add("Exp", c.add("Mul", x, 0.4))
    return c.add("Div", power, c.reduce("ReduceSum", power))


def log_of_sum(c: Chain, x: str) -> str:
    """Write the logarithm of a sum of squares, such as the energy of a frame."""
    return c.add("Log", c.add("Add", c.reduce("ReduceSumSquare", x), 1.0))


def cosine(c: Chain, x: str) -> str:
    """Write the cosine similarity to a fixed vector."""
    other = c.constant(_numbers(c.shape, 3, 6) + 30)
    both = c.reduce("ReduceSum", c.add("Mul", x, other))
    norms = c.add("Mul", c.reduce("ReduceL2", x), c.reduce("ReduceL2", other))
    return c.add("Div", both, norms)


#: Chains whose sums must not be rounded between kernels.
STATISTICS: dict[str, Form] = {
    "deviation": deviation, "unit_length": unit_length, "pooled": pooled_statistics,
    "share": share, "log_of_sum": log_of_sum, "cosine": cosine,
}  # fmt: skip
FORMS = NORMALISATIONS | STATISTICS


def network(
    form: str, shape: Sequence[int], axes: Sequence[int], *, conv: bool = False, opset: int = 17
) -> onnx.ModelProto:
    """Return a form between two element-wise operators, or after a shape-preserving convolution."""
    from support.operators import build

    chain = Chain(shape, axes, opset)
    if conv:
        channels = shape[1]
        weight = chain.constant(np.eye(channels, dtype=np.float32)[..., None, None])
        inner = chain.add("Conv", "x", weight)
    else:
        inner = chain.add("Add", "x", chain.constant(_numbers(shape[-1:], 0.01, 5)))
    result = FORMS[form](chain, inner)
    # The last operator is not fused with the form.
    chain.nodes.append(helper.make_node("Identity", [result], ["y"]))
    return build(chain.nodes, {"x": shape}, ["y"], chain.constants, opset)
