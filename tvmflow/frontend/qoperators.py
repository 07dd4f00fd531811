"""Nodes of quantized networks in the form that converters know.

ONNX Runtime's quantizer has operators of its own for what ONNX computes in real numbers only.
They are that operator between DequantizeLinear and QuantizeLinear::

    QLinearAdd(a, sa, za, b, sb, zb, sy, zy)
    QuantizeLinear(Add(DequantizeLinear(a, sa, za), DequantizeLinear(b, sb, zb)), sy, zy)

DequantizeLinear goes behind what only moves elements, next to the product that takes its integers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import helper

from .graph import node_name

_DOMAIN = "com.microsoft"
#: Operands, each with scale and zero point, then those of the result.
_ALIKE = {
    "QLinearAdd": 2, "QLinearMul": 2, "QLinearLeakyRelu": 1, "QLinearSigmoid": 1,
    "QLinearGlobalAveragePool": 1, "QLinearAveragePool": 1,
}  # fmt: skip
#: The first operator set with QuantizeLinear, and with a scale for each column.
_FIRST, _BY_AXIS = 10, 13

_MOVES = ("Flatten", "Reshape", "Transpose", "Squeeze", "Unsqueeze")


def expanded(nodes: Sequence[onnx.NodeProto], opset: int) -> list[onnx.NodeProto]:
    """Return the nodes with ONNX's own in the place of ONNX Runtime's quantized ones.

    What this does not know stays, and is reported as not supported.
    """
    result: list[onnx.NodeProto] = []
    for node in nodes:
        found = node.domain == _DOMAIN and opset >= _FIRST
        result.extend((_expanded(node, opset) if found else None) or [node])
    return result


def _expanded(node: onnx.NodeProto, opset: int) -> list[onnx.NodeProto] | None:
    inputs = list(node.input)
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    if attributes.pop("channels_last", 0):
        return None
    if node.op_type in _ALIKE and len(inputs) == 3 * _ALIKE[node.op_type] + 2:
        operands, last = inputs[:-2], inputs[-2:]
    elif node.op_type == "QLinearConcat" and len(inputs) % 3 == 2:
        operands, last = inputs[2:], inputs[:2]
    elif node.op_type == "QGemm" and opset >= _BY_AXIS and attributes.pop("alpha", 1.0) == 1:
        return _gemm(node, inputs, attributes)
    else:
        return None
    if not all(last):
        # Without its zero point nothing says what type the result has.
        return None
    parts = _Parts(node)
    reals = [parts.real(operands[i : i + 3]) for i in range(0, len(operands), 3)]
    parts.add(node.op_type.removeprefix("QLinear"), reals, **attributes)
    return parts.quantized(last)


def _gemm(
    node: onnx.NodeProto, inputs: list[str], attributes: dict[str, object]
) -> list[onnx.NodeProto] | None:
    """A product whose bias, if any, is in int32 with the scale of the product."""
    inputs += [""] * (9 - len(inputs))
    a, b, bias, last = inputs[:3], inputs[3:6], inputs[6], inputs[7:]
    if last[0] and not last[1]:
        return None
    parts = _Parts(node)
    reals = [parts.real(a), parts.real(b, axis=0 if attributes.get("transB") else 1)]
    if bias:
        scale = parts.add("Mul", [a[1], b[1]])
        reals.append(parts.real([bias, scale, ""], axis=-1))
    parts.add("Gemm", reals, **attributes)
    return parts.quantized(last)


class _Parts:
    """The nodes that a node becomes; the last one has its name and result."""

    def __init__(self, node: onnx.NodeProto):
        self._name, self._result = node_name(node), node.output[0]
        self._nodes: list[onnx.NodeProto] = []

    def add(self, op_type: str, inputs: Sequence[str], **attributes: object) -> str:
        """Add a node and return the name of its result."""
        name = f"{self._name}:{op_type}{len(self._nodes)}"
        self._nodes.append(helper.make_node(op_type, inputs, [name], name=name, **attributes))
        return name

    def real(self, quantized: Sequence[str], **attributes: object) -> str:
        """The real numbers of a tensor with its scale and zero point."""
        inputs = [name for name in quantized if name]
        return self.add("DequantizeLinear", inputs, **attributes)

    def quantized(self, parameters: Sequence[str]) -> list[onnx.NodeProto]:
        """All nodes, with the last one's result quantized, if there is a scale for it."""
        if parameters[0]:
            self.add("QuantizeLinear", [self._nodes[-1].output[0], *parameters])
        self._nodes[-1].name, self._nodes[-1].output[0] = self._name, self._result
        return self._nodes


def moved_first(
    nodes: Sequence[onnx.NodeProto], constants: Mapping[str, np.ndarray]
) -> list[onnx.NodeProto]:
    """Return the nodes with quantized elements moved before they are dequantized.

    Only of tensors with one scale, which fits all orders of elements.
    """
    result: list[onnx.NodeProto] = []
    reals: dict[str, onnx.NodeProto] = {}
    for node in nodes:
        before = reals.get(node.input[0]) if node.input else None
        if before is not None and not node.domain and node.op_type in _MOVES:
            name = f"{node_name(node)}:quantized"
            moved, real = onnx.NodeProto(), onnx.NodeProto()
            moved.CopyFrom(node)
            moved.name, moved.input[0], moved.output[0] = name, before.input[0], name
            real.CopyFrom(before)
            real.name, real.input[0], real.output[0] = node_name(node), name, node.output[0]
            result += [moved, real]
            reals[node.output[0]] = real
            continue
        if node.op_type == "DequantizeLinear" and not node.domain:
            scale = constants.get(node.input[1])
            if scale is not None and scale.size == 1:
                reals[node.output[0]] = node
        result.append(node)
    return result
