"""Converters of attention, as products, masks and a softmax, and of rotary positions.

    q : [B, Hq, S, D]    k : [B, Hk, T, D]    v : [B, Hk, T, E]       Hq = Hk · G
    y = softmax(softcap(q · kᵀ · scale) + bias) · v

A group of G query heads shares the keys and values of one head; its rows form one matrix,
``[B, Hk, G · S, D]``, so that nothing is repeated.  (Vaswani et al., "Attention Is All You
Need", 2017; Ainslie et al., "GQA", 2023; Su et al., "RoFormer", 2021, for rotary positions.)
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np
import onnx
from tvm import relax
from tvm.relax import op as R

from ...ir.rewriter import constant, shape_of
from ..converter import InvalidNode, NodeContext, Refusal, converts, dtype_of

#: Dtypes by ``softmax_precision``; the softmax never has less precision than the operands.
_PRECISIONS = {
    onnx.TensorProto.FLOAT: "float32", onnx.TensorProto.FLOAT16: "float16",
    onnx.TensorProto.BFLOAT16: "bfloat16", onnx.TensorProto.DOUBLE: "float64",
}  # fmt: skip

#: Values of ``qk_matmul_output_mode``.
_SCORES, _CAPPED, _BIASED, _PROBABILITIES = range(4)


@dataclass(frozen=True)
class _Bias:
    """Addend of the scores before the softmax, minus infinity for masked pairs."""

    value: relax.Expr
    #: Whether a row may be fully masked; its softmax is zero by definition.
    may_be_empty: bool


@converts("Attention")
def attention(c: NodeContext) -> list[relax.Expr | None]:
    """Compute attention, and the cache extended by the new keys and values."""
    if c.has(4) != c.has(5) or (c.has(4) and c.has(6)):
        raise InvalidNode("it needs past keys and past values together, and without padded lengths")
    query, key, value = (_heads(c, index) for index in range(3))
    if c.has(4):
        key, value = R.concat([c.input(4), key], 2), R.concat([c.input(5), value], 2)
    query, key, value = c.emit(query), c.emit(key), c.emit(value)
    batch, heads, rows, depth = shape_of(query)
    shared, columns = shape_of(key)[1:3]
    if heads % shared or shape_of(key)[3] != depth or shape_of(value)[:3] != shape_of(key)[:3]:
        raise InvalidNode(
            f"its heads do not fit together: {heads} of queries of {depth} numbers, "
            f"{list(shape_of(key))} of keys, {list(shape_of(value))} of values"
        )
    grouped = (batch, shared, heads // shared * rows)

    scale = c.attribute("scale") or 1 / sqrt(depth)
    scaled = R.reshape(query * c.constant(scale), (*grouped, depth))
    scores = R.matmul(scaled, R.permute_dims(key, [0, 1, 3, 2]))
    debug = [c.emit(R.reshape(scores, (batch, heads, rows, columns)))]
    cap = c.attribute("softcap", 0.0)
    debug.append(R.tanh(debug[0] / c.constant(cap)) * c.constant(cap) if cap > 0 else debug[0])
    bias = _bias(c, rows, columns)
    debug.append(debug[1] if bias is None else debug[1] + bias.value)
    debug.append(c.emit(_softmax(c, debug[2], bias)))
    result = R.matmul(R.reshape(debug[_PROBABILITIES], (*grouped, columns)), value)
    result = R.reshape(result, (batch, heads, rows, shape_of(value)[3]))
    if len(c.shape()) == 3:
        result = R.reshape(R.permute_dims(result, [0, 2, 1, 3]), c.result.shape)

    mode = c.attribute("qk_matmul_output_mode", _SCORES)
    if not 0 <= mode < len(debug):
        raise InvalidNode(f"its qk_matmul_output_mode is {mode}, expected 0 to 3")
    return [result, key, value, debug[mode]]


def _heads(c: NodeContext, index: int) -> relax.Expr:
    """Return queries, keys or values as ``[B, heads, length, depth]``."""
    shape = c.shape(index)
    if len(shape) == 4:
        return c.input(index)
    if len(shape) != 3:
        raise InvalidNode(f"an input has {len(shape)} axes, expected three or four")
    return _split(c, index, c.required("q_num_heads" if index == 0 else "kv_num_heads"))


def _split(c: NodeContext, index: int, heads: int) -> relax.Expr:
    """Split the numbers of an input's tokens into heads, ``[B, heads, length, depth]``."""
    shape = c.shape(index)
    if heads < 1 or shape[2] % heads:
        raise InvalidNode(f"{shape[2]} numbers cannot be split into {heads} heads")
    split = R.reshape(c.input(index), (*shape[:2], heads, shape[2] // heads))
    return R.permute_dims(split, [0, 2, 1, 3])


def _bias(c: NodeContext, rows: int, columns: int) -> _Bias | None:
    """Return the addend for scores of queries (rows) and keys (columns)."""
    lowest, zero = c.constant(-np.inf), c.constant(0)
    allowed, value, may_be_empty = _window(c, rows, columns), None, False
    if c.has(3):
        may_be_empty = True
        value = _padded_mask(c, columns)
        if dtype_of(value) == "bool":
            value = R.where(value, zero, lowest)
    if c.has(6):
        lengths = c.cast(c.reshaped(6, (-1, 1, 1, 1)), "int64")
        places = constant(np.arange(columns).reshape(1, 1, 1, -1))
        present = R.where(R.less(places, lengths), zero, lowest)
        value = present if value is None else value + present
        may_be_empty = True
    if isinstance(allowed, np.ndarray):
        if allowed.all():
            return None if value is None else _Bias(value, may_be_empty)
        may_be_empty |= not allowed.any(axis=-1).all()
        window = c.constant(np.where(allowed, 0, -np.inf))
    else:
        window = R.where(allowed, zero, lowest)
    return _Bias(window if value is None else value + window, may_be_empty)


def _padded_mask(c: NodeContext, columns: int) -> relax.Expr:
    """Return the mask for all keys; the last keys are masked if the given mask is shorter."""
    missing, mask = columns - c.shape(3)[-1], c.input(3)
    if missing <= 0:
        return mask
    fill = np.full((*c.shape(3)[:-1], missing), False if c.dtype(3) == "bool" else -np.inf)
    return c.emit(R.concat([mask, c.constant(fill, c.dtype(3))], len(c.shape(3)) - 1))


def _window(c: NodeContext, rows: int, columns: int) -> np.ndarray | relax.Expr:
    """Return which keys each query may attend to by position, ``[S, T]``, constant or per batch.

    Query i has the position i + offset, as it follows the keys in the cache.
    """
    left, right = c.attribute("left_window_size", -1), c.attribute("right_window_size", -1)
    if c.attribute("is_causal", 0):
        right = 0 if right < 0 else min(right, 0)
    distance = np.arange(rows)[:, None] - np.arange(columns)
    limits = [(left, 1), (right, -1)]
    if not c.has(6):
        distance = distance + (c.shape(4)[2] if c.has(4) else 0)
        inside = np.ones(distance.shape, bool)
        for limit, sign in limits:
            inside &= (limit < 0) | (sign * distance <= limit)
        return inside
    offset = c.cast(c.reshaped(6, (-1, 1, 1, 1)), "int64") - constant(np.array(rows))
    found: relax.Expr | None = None
    for limit, sign in limits:
        if limit >= 0:
            signed = constant(np.array(sign)) * (offset + constant(distance))
            test = R.less_equal(signed, constant(np.array(limit)))
            found = test if found is None else R.logical_and(found, test)
    return np.ones(distance.shape, bool) if found is None else found


def _softmax(c: NodeContext, scores: relax.Expr, bias: _Bias | None) -> relax.Expr:
    """Return the softmax over keys; zero for fully masked rows."""
    precision = c.attribute("softmax_precision", 0)
    if precision and precision not in _PRECISIONS:
        raise InvalidNode(f"its softmax_precision {precision} is not a floating-point type")
    dtype = c.dtype()
    wide = "float64" if _PRECISIONS.get(precision) == "float64" else dtype
    result = c.cast(R.nn.softmax(c.cast(scores, wide), -1), dtype)
    if bias is None or not bias.may_be_empty:
        return result
    most = R.max(bias.value, [-1], keepdims=True)
    return R.where(most > c.constant(-np.inf), result, c.constant(0))


@converts("RotaryEmbedding")
def rotary_embedding(c: NodeContext) -> relax.Expr:
    """Rotate pairs of numbers of each head by angles that grow with the position."""
    shape = c.shape()
    x = c.emit(_split(c, 0, c.required("num_heads")) if len(shape) == 3 else c.input())
    batch, heads, length, depth = shape_of(x)
    turned = c.attribute("rotary_embedding_dim", 0) or depth
    half = turned // 2
    if turned % 2 or turned > depth or c.shape(1)[-1] != half:
        raise InvalidNode(
            f"it turns {turned} of {depth} numbers by {c.shape(1)[-1]} angles, expected an even "
            "number and half as many angles"
        )

    def angles(index: int) -> relax.Expr:
        found = c.input(index)
        if c.has(3):
            if len(c.shape(3)) != 2 or len(c.shape(index)) != 2:
                raise Refusal("its positions do not have the shape of a batch of sequences")
            found = R.take(found, R.astype(c.input(3), "int64"), 0, "clip")
        return R.reshape(found, (batch, 1, length, half))

    cosine, sine = angles(1), angles(2)
    # Pairs are neighbours if interleaved, else elements of the two halves.
    step, second = (2, 1) if c.attribute("interleaved", 0) else (1, half)
    a, b = (
        R.strided_slice(x, [3], [start], [start + (half - 1) * step + 1], [step])
        for start in (0, second)
    )
    parts = [a * cosine - b * sine, a * sine + b * cosine]
    if step == 2:
        pairs = [R.expand_dims(part, 4) for part in parts]
        parts = [R.reshape(R.concat(pairs, 4), (batch, heads, length, turned))]
    if turned < depth:
        parts.append(R.strided_slice(x, [3], [turned], [depth]))
    result = R.concat(parts, 3) if len(parts) > 1 else parts[0]
    if len(shape) == 3:
        result = R.permute_dims(result, [0, 2, 1, 3])
    return R.reshape(result, shape)
