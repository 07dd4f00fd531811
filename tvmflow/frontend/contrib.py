"""Conversion of ONNX Runtime's quantized operators, domain ``com.microsoft``, to ONNX's.

Its quantizers emit quantized forms of operators that ONNX defines for real numbers only.  Most are
equivalent to ONNX's operator between DequantizeLinear and QuantizeLinear::

    QLinearAdd(a, sa, za, b, sb, zb, sy, zy)
    QuantizeLinear(Add(DequantizeLinear(a, sa, za), DequantizeLinear(b, sb, zb)), sy, zy)

Others quantize their input at run time and multiply integers::

    DynamicQuantizeMatMul(a, b, sb, zb, bias)
    MatMulIntegerToFloat(q, b, sa, sb, za, zb, bias)    with q, sa, za = DynamicQuantizeLinear(a)
    Cast(MatMulInteger(q, b, za, zb)) * (sa * sb) + bias

:mod:`.packed_blocks` has the operators with packed weights, :mod:`.fused_transformers` the fused
operators of transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper

from .converter import Refusal
from .fused_transformers import embed_layer_normalization
from .graph import CONTRIB_DOMAIN, lists_of, node_name, operator_name
from .packed_blocks import gather_block_quantized, matmul_bnb4, matmul_nbits
from .replacement import Parts
from .source import PACKED

#: First operator set with QuantizeLinear; with DynamicQuantizeLinear; with one scale per column and
#: Softmax along one axis.
_QUANTIZE, _DYNAMIC, _COLUMNS = 10, 11, 13
#: Least and largest number of each type of 2 and 4 bits.
_LIMITS = {
    TensorProto.INT4: (-8, 7), TensorProto.UINT4: (0, 15),
    TensorProto.INT2: (-2, 1), TensorProto.UINT2: (0, 3),
}  # fmt: skip


def expand_quantized(
    nodes: Sequence[onnx.NodeProto],
    opset: int,
    constants: dict[str, np.ndarray],
    packed: Mapping[str, int],
    origins: dict[str, tuple[str, ...]],
    problems: list[tuple[str, str, str]],
) -> list[onnx.NodeProto]:
    """Return the nodes with ONNX Runtime's quantized operators replaced by ONNX's.

    Constants that the new nodes need are added to ``constants``; ``origins`` maps them to the
    replaced node's constants.  ``packed`` has the element types of constants of 2 and 4 bits, which
    are bytes in ``constants``.  Unknown operators stay, and a later step reports them as not
    supported.  Forms of operators that are not supported are added to ``problems``: operator, name
    and reason of the node.
    """

    def replaced(node: onnx.NodeProto, rule: _Rule | None) -> list[onnx.NodeProto]:
        if rule is None:
            return [node]
        parts = Parts(node, opset, constants, packed, origins)
        try:
            return parts.nodes if rule(parts) else [node]
        except Refusal as refusal:
            problems.append((operator_name(node), node_name(node), str(refusal)))
            return [node]

    result: list[onnx.NodeProto] = []
    for node in nodes:
        is_expanded = node.domain == CONTRIB_DOMAIN and opset >= _QUANTIZE
        for each in replaced(node, EXPANSIONS.get(node.op_type) if is_expanded else None):
            is_quantize = each.op_type == "QuantizeLinear" and not each.domain
            result += replaced(each, _without_packed if is_quantize else None)
    return result


#: Function that adds the nodes that replace one; returns false if the node must stay.
_Rule = Callable[[Parts], bool]


def _between(operands: int, *, first: int = 0) -> _Rule:
    """Return the rule for ONNX's operator between DequantizeLinear and QuantizeLinear.

    Each of the ``operands`` has a scale and a zero point; ``first`` other inputs precede them.
    """

    def rule(parts: Parts) -> bool:
        end = first + 3 * operands
        if len(parts.node.input) != end + 2 or parts.attributes.pop("channels_last", 0):
            return False
        reals = [parts.real(parts.inputs(i, i + 1, i + 2)) for i in range(first, end, 3)]
        others = parts.inputs(*range(first))
        op_type = parts.node.op_type.removeprefix("QLinear")
        parts.add(op_type, [*others, *reals], **parts.attributes)
        return parts.quantize(parts.inputs(end, end + 1))

    return rule


def _concat(parts: Parts) -> bool:
    count = len(parts.node.input)
    if count % 3 != 2:
        return False
    reals = [parts.real(parts.inputs(i, i + 1, i + 2)) for i in range(2, count, 3)]
    parts.add("Concat", reals, **parts.attributes)
    return parts.quantize(parts.inputs(0, 1))


def _gemm(parts: Parts) -> bool:
    """Replace QGemm, whose optional bias is in int32 with the scale of the product."""
    attributes = parts.attributes
    if parts.opset < _COLUMNS or attributes.pop("alpha", 1.0) != 1:
        return False
    a, b, bias = parts.inputs(0, 1, 2), parts.inputs(3, 4, 5), parts.input(6)
    reals = [parts.real(a), parts.real(b, axis=0 if attributes.get("transB") else 1)]
    if bias:
        scale = parts.add("Mul", [a[1], b[1]])
        reals.append(parts.real([bias, scale, ""], axis=-1))
    parts.add("Gemm", reals, **attributes)
    return parts.quantize(parts.inputs(7, 8))


def _softmax(parts: Parts) -> bool:
    """Replace QLinearSoftmax with a Softmax of the operator set that its attribute names.

    Before set 13 Softmax normalises over all axes starting at ``axis``.
    """
    real = parts.real(parts.inputs(0, 1, 2))
    set_13 = parts.attributes.get("opset", parts.opset) >= _COLUMNS
    axis = parts.attributes.get("axis", -1 if set_13 else 1)
    if set_13 == (parts.opset >= _COLUMNS) or (set_13 and axis == -1):
        parts.add("Softmax", [real], axis=axis)
    elif set_13:
        return False
    else:
        shape = parts.add("Shape", [real])
        flat = parts.add("Softmax", [parts.add("Flatten", [real], axis=axis)], axis=1)
        parts.add("Reshape", [flat, shape])
    return parts.quantize(parts.inputs(3, 4))


def _reduce_mean(parts: Parts) -> bool:
    real, attributes = parts.real(parts.inputs(0, 1, 2)), dict(parts.attributes)
    given = {"axes": attributes.pop("axes")} if "axes" in attributes else {}
    axes, older = lists_of("ReduceMean", parts.opset, parts.constant, **given)
    parts.add("ReduceMean", [real, *axes], **attributes, **older)
    return parts.quantize(parts.inputs(3, 4))


def _same(parts: Parts) -> bool:
    """Move a node to ONNX's domain: newer operator sets have all forms of the operator."""
    parts.add(parts.node.op_type, parts.node.input, **parts.attributes)
    return True


def _product(
    parts: Parts, a: str, b: str, scales: Sequence[str], zeros: Sequence[str], bias: str
) -> str:
    """Add a product of integers, its dequantization, and a bias if there is one."""
    total = parts.add("Cast", [parts.add("MatMulInteger", [a, b, *zeros])], to=TensorProto.FLOAT)
    result = parts.add("Mul", [total, parts.add("Mul", scales)])
    return parts.add("Add", [result, bias]) if bias else result


def _matmul_integer(parts: Parts) -> bool:
    a, b, *scales = parts.inputs(0, 1, 2, 3)
    _product(parts, a, b, scales, parts.inputs(4, 5), parts.input(6))
    return True


def _dynamic_matmul(parts: Parts) -> bool:
    if parts.opset < _DYNAMIC:
        return False
    a, b, scale, zero, bias = parts.inputs(0, 1, 2, 3, 4)
    a, own_scale, own_zero = parts.add_several("DynamicQuantizeLinear", [a], 3)
    _product(parts, a, b, [own_scale, scale], [own_zero, zero], bias)
    return True


def _dynamic_lstm(parts: Parts) -> bool:
    """Replace DynamicQuantizeLSTM with LSTM on dequantized input and weights.

    ONNX Runtime also rounds the state of each step to 8 bits; here it stays in fp32.  Weights are
    ``[D, I, 4 H]``, with one scale for each direction or for each column of a direction.
    """
    if parts.opset < _DYNAMIC:
        return False
    x = parts.real(parts.add_several("DynamicQuantizeLinear", [parts.input(0)], 3))
    weights = []
    for index, parameters in ((1, (8, 9)), (2, (10, 11))):
        value = parts.add("Cast", [parts.input(index)], to=TensorProto.FLOAT)
        scale, zero = parts.inputs(*parameters)
        if zero:
            zero = parts.add("Cast", [parts.reshaped(zero, (0, 1, -1))], to=TensorProto.FLOAT)
            value = parts.add("Sub", [value, zero])
        value = parts.add("Mul", [value, parts.reshaped(scale, (0, 1, -1))])
        weights.append(parts.add("Transpose", [value], perm=[0, 2, 1]))
    others = parts.inputs(3, 4, 5, 6, 7)
    parts.add_several("LSTM", [x, *weights, *others], len(parts.node.output), **parts.attributes)
    return True


def _attention(parts: Parts) -> bool:
    """Replace QAttention with its integer product and Attention on the result."""
    if parts.opset < _DYNAMIC:
        return False
    x, weight, bias, *scales = parts.inputs(0, 1, 2, 3, 4)
    product = _product(parts, x, weight, scales, parts.inputs(6, 7), bias)
    parts.add_several(
        "Attention", [product, "", "", *parts.inputs(5, 8)], len(parts.node.output),
        domain=CONTRIB_DOMAIN, **parts.attributes,
    )  # fmt: skip
    return True


#: Rules by operator.
EXPANSIONS: dict[str, _Rule] = {
    **dict.fromkeys(("QLinearAdd", "QLinearMul"), _between(2)),
    **dict.fromkeys(
        (
            "QLinearLeakyRelu", "QLinearSigmoid", "QLinearGlobalAveragePool",
            "QLinearAveragePool",
        ),
        _between(1),
    ),
    "QLinearWhere": _between(2, first=1),
    "QLinearConcat": _concat,
    "QLinearSoftmax": _softmax,
    "QLinearReduceMean": _reduce_mean,
    "QGemm": _gemm,
    "QuantizeLinear": _same,
    "DequantizeLinear": _same,
    "MatMulIntegerToFloat": _matmul_integer,
    "DynamicQuantizeMatMul": _dynamic_matmul,
    "DynamicQuantizeLSTM": _dynamic_lstm,
    "QAttention": _attention,
    **dict.fromkeys(
        ("EmbedLayerNormalization", "QEmbedLayerNormalization"), embed_layer_normalization
    ),
    "MatMulNBits": matmul_nbits,
    "MatMulBnb4": matmul_bnb4,
    "GatherBlockQuantized": gather_block_quantized,
}  # fmt: skip


def _without_packed(parts: Parts) -> bool:
    """Replace a QuantizeLinear to 2 or 4 bits with nodes on bytes; return false for other types.

    ::

        before  QuantizeLinear(x, s, z : int4)
        after   Clip(QuantizeLinear(x, s, z : int8), -8, 7)
    """
    attributes = parts.attributes
    kind = parts.packed.get(parts.input(2)) or attributes.get("output_dtype")
    if kind is None or kind not in _LIMITS:
        return False
    if attributes.get("output_dtype"):
        attributes["output_dtype"] = helper.np_dtype_to_tensor_dtype(np.dtype(PACKED[kind]))
    value = parts.add("QuantizeLinear", parts.node.input, **attributes)
    limits = [parts.constant(np.array(n, PACKED[kind])) for n in _LIMITS[kind]]
    parts.add("Clip", [value, *limits])
    return True
