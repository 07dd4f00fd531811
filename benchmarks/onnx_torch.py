"""An ONNX network as a PyTorch module: the operators of the benchmarks' networks and layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper
from torch import Tensor, nn
from torch.nn import functional as F


def _conv(x: Tensor, w: Tensor, b: Tensor | None = None, **at: Any) -> Tensor:
    pads = _symmetric(at.get("pads", [0] * 4))
    strides, dilations = at.get("strides", [1, 1]), at.get("dilations", [1, 1])
    return F.conv2d(x, w, b, strides, pads, dilations, at.get("group", 1))


def _batch_norm(x: Tensor, s: Tensor, b: Tensor, mean: Tensor, var: Tensor, **at: Any) -> Tensor:
    return F.batch_norm(x, mean, var, s, b, training=False, eps=at.get("epsilon", 1e-5))


def _gemm(x: Tensor, w: Tensor, b: Tensor | None = None, **at: Any) -> Tensor:
    return F.linear(x, w if at.get("transB") else w.T, b)


def _max_pool(x: Tensor, **at: Any) -> Tensor:
    pads = _symmetric(at.get("pads", [0] * 4))
    return F.max_pool2d(x, at["kernel_shape"], at.get("strides", [1, 1]), pads)


def _layer_norm(x: Tensor, s: Tensor, b: Tensor | None = None, **at: Any) -> Tensor:
    return F.layer_norm(x, s.shape, s, b, at.get("epsilon", 1e-5))


def _symmetric(pads: list[int]) -> list[int]:
    top, left, bottom, right = pads
    if (top, left) != (bottom, right):
        raise NotImplementedError(f"padding {pads} is not the same on both sides")
    return [top, left]


OPERATORS: dict[str, Callable[..., Tensor]] = {
    "Add": torch.add,
    "BatchNormalization": _batch_norm,
    "Clip": torch.clamp,
    "Conv": _conv,
    "Flatten": lambda x, axis=1: torch.flatten(x, axis),
    "Gemm": _gemm,
    "GlobalAveragePool": lambda x: x.mean((2, 3), keepdim=True),
    "LayerNormalization": _layer_norm,
    "MatMul": torch.matmul,
    "MaxPool": _max_pool,
    "Neg": torch.neg,
    "Relu": F.relu,
    "Reshape": torch.reshape,
    "Softmax": lambda x, axis=-1: torch.softmax(x, axis),
}


class OnnxModule(nn.Module):
    """Runs the nodes of a graph in order.

    Raises
    ------
    NotImplementedError
        For an operator that is not among `OPERATORS`.
    """

    def __init__(self, model: onnx.ModelProto):
        super().__init__()
        graph = model.graph
        constants = {c.name: numpy_helper.to_array(c) for c in graph.initializer}
        self.inputs = [i.name for i in graph.input if i.name not in constants]
        self.outputs = [o.name for o in graph.output]
        self.nodes: list[tuple[Callable[..., Tensor], list[str], dict[str, Any], str]] = []
        #: Limits of Clip and shapes are numbers: PyTorch's kernels take no tensors for them.
        self.numbers = {
            n: c.tolist() for n, c in constants.items() if c.ndim == 0 or c.dtype == np.int64
        }
        for name, array in constants.items():
            if name not in self.numbers:
                self.register_buffer(_attribute(name), torch.from_numpy(array.copy()))
        for node in graph.node:
            if node.op_type not in OPERATORS:
                raise NotImplementedError(f"the operator {node.op_type} of {node.name}")
            given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
            names = [name for name in node.input if name]
            self.nodes.append((OPERATORS[node.op_type], names, given, node.output[0]))

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return the first output."""
        values = {**self.numbers, **dict(zip(self.inputs, inputs, strict=True))}
        for operator, names, given, result in self.nodes:
            operands = [values[n] if n in values else getattr(self, _attribute(n)) for n in names]
            values[result] = operator(*operands, **given)
        return values[self.outputs[0]]


def _attribute(name: str) -> str:
    """Return a constant's name as PyTorch allows it."""
    return "c_" + name.replace(".", "_")
