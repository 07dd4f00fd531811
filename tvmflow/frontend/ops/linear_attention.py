"""Converters of layers with a recurrent state instead of a cache of keys and values.

A recurrence is unrolled to one step for each token of a call.
"""

from __future__ import annotations

from math import sqrt

import numpy as np
from tvm import relax
from tvm.relax import op as R

from ..converter import InvalidNode, NodeContext, Refusal, converts

#: Most tokens for which a recurrence is unrolled.
_MOST_STEPS = 64


@converts("LinearAttention")
def linear_attention(c: NodeContext) -> list[relax.Expr]:
    """Compute attention with one state matrix per head, to which each token adds key times value.

    Decay shrinks the matrix; beta scales the difference between the value and the matrix's current
    output for the key, which is added instead (Yang et al., "Gated Delta Networks", 2024).
    """
    rule = c.attribute("update_rule", "gated_delta")
    if rule not in ("linear", "gated", "delta", "gated_delta"):
        raise InvalidNode(f"its update_rule {rule!r} is unknown")
    if c.has(4) != ("gated" in rule) or c.has(5) != ("delta" in rule):
        raise InvalidNode(f"its update_rule {rule!r} needs other inputs")
    batch, steps, _ = c.shape()
    if steps > _MOST_STEPS:
        raise Refusal(f"more than {_MOST_STEPS} tokens at once are not supported, it has {steps}")
    heads, shared = c.required("q_num_heads"), c.required("kv_num_heads")
    if shared < 1 or heads < 1 or heads % shared:
        raise InvalidNode(f"it has {heads} heads of queries, and {shared} of keys and values")
    group = heads // shared
    depth, width = c.shape()[2] // heads, c.shape(2)[2] // shared
    dtype = "float32" if c.dtype() == "float16" else c.dtype()

    def tokens(index: int, *extents: int) -> list[relax.Expr]:
        """Return an input split into tokens."""
        x = c.emit(c.cast(c.input(index), dtype))
        parts = (R.strided_slice(x, [1], [step], [step + 1]) for step in range(steps))
        return [R.reshape(c.emit(part), (batch, *extents)) for part in parts]

    queries = tokens(0, shared, group, depth)
    keys, values = tokens(1, shared, depth, 1), tokens(2, shared, 1, width)
    decays = tokens(4, shared, c.shape(4)[2] // shared, 1) if c.has(4) else [None] * steps
    betas = tokens(5, c.shape(5)[2], 1, 1) if c.has(5) else [None] * steps
    scale = c.attribute("scale", 0.0) or 1 / sqrt(depth)
    start = np.zeros((batch, shared, depth, width))
    state = c.cast(c.input(3), dtype) if c.has(3) else c.constant(start, dtype)
    results = []
    for query, key, value, decay, beta in zip(queries, keys, values, decays, betas, strict=True):
        if decay is not None:
            state = state * R.exp(decay)
        if beta is not None:
            value = beta * (value - R.sum(state * key, [2], keepdims=True))
        state = c.emit(state + key * value)
        found = R.matmul(query * c.constant(scale, dtype), state)
        results.append(R.reshape(c.emit(found), (batch, 1, heads * width)))
    result = R.concat(results, 1) if steps > 1 else results[0]
    return [c.cast(result, c.dtype()), c.cast(state, c.dtype(3) if c.has(3) else c.dtype())]


@converts("CausalConvWithState")
def causal_convolution(c: NodeContext) -> list[relax.Expr]:
    """Convolve each channel along time, with the last call's last elements as padding."""
    batch, channels, length = c.shape()
    taps, activation = c.shape(1)[2], c.attribute("activation", "none")
    if activation not in ("none", "silu", "swish"):
        raise InvalidNode(f"its activation {activation!r} is unknown")
    past = c.input(3) if c.has(3) else c.constant(np.zeros((batch, channels, taps - 1)))
    x = c.emit(R.concat([past, c.input()], 2)) if taps > 1 else c.input()
    result = R.nn.conv1d(x, c.input(1), groups=channels)
    if c.has(2):
        result = result + R.reshape(c.input(2), (1, channels, 1))
    if activation != "none":
        result = c.emit(result)
        result = result * R.sigmoid(result)
    return [result, R.strided_slice(x, [2], [length], [length + taps - 1])]
