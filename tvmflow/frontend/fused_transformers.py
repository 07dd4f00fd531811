"""Expansion of the fused operators of ONNX Runtime's transformer optimizer and its quantizers.

Embeddings become look-ups, a sum and its normalisation; attention becomes products, a mask and a
softmax, which :mod:`tvmflow.graph.attention` fuses again::

    before  y = Attention(x, w, bias, mask)         mask : [B, T], 0 for masked keys
    after   q, k, v = the thirds of x · w + bias, by heads
            y = Softmax(q · kᵀ · scale + Where(mask > 0, 0, -10000)) · v
"""

from __future__ import annotations

from math import sqrt

import numpy as np
from onnx import TensorProto

from .converter import InvalidNode, Refusal
from .expansion import Expansion, Nodes, expands
from .graph import CONTRIB_DOMAIN, lists_of
from .replacement import Parts

#: First operator set with limits of Slice as inputs.
_SLICES = 10


# Embeddings ------------------------------------------------------------------------------


def embed_layer_normalization(parts: Parts) -> bool:
    """Expand to the normalised sum of embeddings, and the number of unmasked words per sample.

    Quantized tables are dequantized after the look-up.
    """
    ids, segments, word, position, segment, gamma, beta, mask = parts.inputs(*range(8))
    is_quantized = parts.node.op_type.startswith("Q")
    extents = parts.add("Shape", [ids])

    def real(value: str, table: int) -> str:
        return parts.real([value, *parts.inputs(8 + table, 13 + table)]) if is_quantized else value

    def sliced(value: str, start: int, end: str) -> str:
        first = parts.constant(np.array([start]))
        return parts.add("Slice", [value, first, end, parts.constant(np.array([0]))])

    if not is_quantized and parts.input(8):
        positions = parts.add("Gather", [position, parts.input(8)])
    else:
        length = sliced(extents, 1, parts.constant(np.array([2])))
        positions = sliced(position, 0, length)
    words = real(parts.add("Gather", [word, ids]), 0)
    total = parts.add("Add", [words, real(positions, 1)])
    if segments:
        rows = real(parts.add("Gather", [segment, segments]), 2)
        total = parts.add("Add", [total, rows])
    parts.result(2, total)
    if mask:
        ones = parts.add("Equal", [mask, parts.constant(np.int32(1))])
        ones = parts.add("Cast", [ones], to=TensorProto.INT32)
        parts.result(1, _reduced(parts, "ReduceSum", ones, 1, keepdims=0))
    else:
        batch = sliced(extents, 0, parts.constant(np.array([1])))
        parts.result(1, parts.add("Expand", [parts.constant(np.int32(0)), batch]))
    centered = parts.add("Sub", [total, _reduced(parts, "ReduceMean", total, 2)])
    squares = parts.add("Mul", [centered, centered])
    variance = _reduced(parts, "ReduceMean", squares, 2)
    known = parts.constants.get(gamma)
    dtype = np.float32 if is_quantized or known is None else known.dtype
    epsilon = parts.constant(np.array(parts.attributes.get("epsilon", 1e-12), dtype))
    deviation = parts.add("Sqrt", [parts.add("Add", [variance, epsilon])])
    value = parts.add("Mul", [parts.add("Div", [centered, deviation]), real(gamma, 3)])
    parts.add("Add", [value, real(beta, 4)])
    return True


def _reduced(parts: Parts, op_type: str, value: str, axis: int, **attributes: int) -> str:
    """Add a reduction along an axis."""
    axes, older = lists_of(op_type, parts.opset, parts.constant, axes=[axis])
    return parts.add(op_type, [value, *axes], **attributes, **older)


# Attention -------------------------------------------------------------------------------


@expands(f"{CONTRIB_DOMAIN}.Attention")
def attention(c: Expansion) -> Nodes[None]:
    """Expand multi-head self-attention and its cache of keys and values.

    Without weights the input is already the projection, as from QAttention.
    """
    for name in ("do_rotary", "past_present_share_buffer"):
        if c.attributes.get(name, 0):
            raise Refusal(f"its attribute {name} is set, which is not supported")
    if c.graph.opset < _SLICES:
        raise Refusal(f"it needs operator set {_SLICES}, not {c.graph.opset}")
    projected = c.inputs[0]
    if c.has(1):
        projected = yield from c.make("MatMul", [projected, c.inputs[1]])
    if c.has(2):
        projected = yield from c.make("Add", [projected, c.inputs[2]])
    kind, heads = c.type_of(projected), c.attributes.get("num_heads", 0)
    if len(kind.shape) != 3 or heads < 1:
        raise InvalidNode(f"its input is {kind} for {heads} heads, expected three axes")
    batch, length, width = (c.extent(projected, axis) for axis in range(3))
    sizes = c.attributes.get("qkv_hidden_sizes") or [width // 3] * 3
    if sum(sizes) != width or sizes[0] != sizes[1] or any(size % heads for size in sizes):
        raise InvalidNode(f"{width} numbers of sizes {sizes} cannot be split into {heads} heads")

    parts, begin = [], 0
    for size in sizes:
        limits = (c.constant(np.array([n])) for n in (begin, begin + size, 2))
        part = yield from c.make("Slice", [projected, *limits])
        part = yield from c.reshaped(part, (batch, length, heads, size // heads))
        parts.append((yield from c.make("Transpose", [part], perm=[0, 2, 1, 3])))
        begin += size
    query, *states = parts
    if c.has(4):
        for index, state in enumerate(states):
            past = yield from c.make("Gather", [c.inputs[4], c.constant(np.array(index))], axis=0)
            states[index] = yield from c.make("Concat", [past, state], axis=2)
    key, value = states
    if c.is_used(1):
        yield from c.result(1, (yield from c.stacked(states, 0)))

    turned = yield from c.make("Transpose", [key], perm=[0, 1, 3, 2])
    scores = yield from c.make("MatMul", [query, turned])
    scale = c.attributes.get("scale", 0.0) or 1 / sqrt(sizes[0] // heads)
    factor = c.constant(np.array(scale, kind.dtype))
    scores = yield from c.make("Mul", [scores, factor])
    if c.has(5):
        scores = yield from c.make("Add", [scores, c.inputs[5]])
    keys = c.extent(key, 2)
    allowed = (yield from _allowed(c, batch, length, keys)) if c.has(3) else None
    if allowed is not None:
        filtered = c.attributes.get("mask_filter_value", -10000.0)
        numbers = [c.constant(np.array(number, kind.dtype)) for number in (0, filtered)]
        mask = yield from c.make("Where", [allowed, *numbers])
        scores = yield from c.make("Add", [scores, mask])
    if c.attributes.get("unidirectional", 0) and length > 1:
        later = np.triu(np.full((length, keys), -np.inf), keys - length + 1)
        scores = yield from c.make("Add", [scores, c.constant(later.astype(kind.dtype))])
    shares = yield from c.make("Softmax", [scores], axis=3)
    result = yield from c.make("MatMul", [shares, value])
    result = yield from c.make("Transpose", [result], perm=[0, 2, 1, 3])
    yield from c.result(0, (yield from c.reshaped(result, (batch, length, sizes[2]))))


def _allowed(c: Expansion, batch: int, rows: int, keys: int) -> Nodes[str | None]:
    """Return which keys are unmasked, for any of ONNX Runtime's mask forms; ``None`` if all."""
    mask = c.inputs[3]
    shape = c.type_of(mask).shape
    if shape in ((batch, keys), (batch, rows, keys)):
        own_rows = rows if len(shape) == 3 else 1
        mask = yield from c.reshaped(mask, (batch, 1, own_rows, keys))
        return (yield from c.make("Greater", [mask, c.constant(np.int32(0))]))
    if shape in ((batch,), (2 * batch,)):
        places, limits = c.constant(np.arange(keys, dtype=np.int32)), []
        for begin in range(0, shape[0], batch):
            part = [c.constant(np.array([n])) for n in (begin, begin + batch)]
            limit = yield from c.make("Slice", [mask, *part])
            limit = yield from c.reshaped(limit, (batch, 1, 1, 1))
            limits.append((yield from c.make("Less", [places, limit])))
        if len(limits) == 1:
            return limits[0]
        begun = yield from c.make("Not", limits[1:])
        return (yield from c.make("And", [limits[0], begun]))
    if shape in ((batch, 1), (1, 1)):
        return None
    raise Refusal(
        f"its mask of shape {list(shape)} is none of [{batch}], [{2 * batch}], [{batch}, {keys}] "
        f"and [{batch}, {rows}, {keys}]"
    )
