"""Shared TE definitions of the families' computations."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from tvm import te, tirx

from ..devices.choices import MIXED
from .common import FAMILY, PAD, ROLE

#: Function from two factors to their product.
Multiply = Callable[[tirx.Expr, tirx.Expr], tirx.Expr]
#: Function from an output block, its lane and an input channel (of a group) to the input's indices.
Channel = Callable[[tirx.Expr, tirx.Expr, tirx.Expr], tuple[tirx.Expr, ...]]
#: The dtype of products and sums; ``None`` for that of the tensors, and ``mixed`` for products of
#: halves that are summed in fp32, which code generation turns into chunks of halves
#: (:mod:`tvmflow.ir.half_sums`).
Sums: TypeAlias = str | None


def exponential(x: tirx.Expr) -> tirx.Expr:
    """Return ``exp(x)`` of a number less the largest of its row, as softmax sums them.

    In fp32 the result is zero if it were below the least normal number, which is lost in the sum
    of at least 1: a mask of -100 would otherwise give denormal numbers, which a CPU takes 100
    times as long to multiply.
    """
    dtype = str(x.ty.dtype)
    if dtype != "float32":
        return tirx.exp(x)
    least = math.log(np.finfo(np.float32).tiny)
    return tirx.Select(x < tirx.const(least, dtype), tirx.const(0, dtype), tirx.exp(x))


def pad_spatial(x: te.Tensor, padding: tuple[int, int, int, int], value: float = 0) -> te.Tensor:
    """Pad axes 2 and 3 of ``x`` by (top, left, bottom, right); return ``x`` itself if all are 0."""
    top, left, bottom, right = padding
    if not any(padding):
        return x
    shape = list(x.shape)
    height, width = shape[2], shape[3]
    shape[2], shape[3] = height + top + bottom, width + left + right

    def body(*index: tirx.Expr) -> tirx.Expr:
        h, w = index[2], index[3]
        inside = tirx.all(h >= top, h < height + top, w >= left, w < width + left)
        source = (*index[:2], h - top, w - left, *index[4:])
        return tirx.if_then_else(inside, x(*source), tirx.const(value, x.dtype))

    return te.compute(shape, body, name="pad", attrs={ROLE: PAD})


def windows_in(
    padded: te.Tensor, kernel: Sequence[int], strides: Sequence[int], dilation: Sequence[int]
) -> list[int]:
    """Return the rows and columns of windows in axes 2 and 3 of a padded tensor."""
    return [*map(output_extent, map(int, padded.shape[2:4]), kernel, strides, dilation)]


def output_extent(
    extent: int,
    window: int,
    stride: int,
    dilation: int,
    before: int = 0,
    after: int = 0,
    ceil_mode: bool = False,
) -> int:
    """Return the number of windows along one axis, with padding before and after it.

    In ceil mode a last window may overhang, but it must start inside the input
    or its leading padding.
    """
    span = extent + before + after - dilation * (window - 1) - 1
    count = (-(-span // stride) if ceil_mode else span // stride) + 1
    return count - (ceil_mode and (count - 1) * stride >= extent + before)


def narrowed(value: tirx.Expr, dtype: Sums) -> tirx.Expr:
    """Cast a factor or summand to the dtype of its sum; ``None`` leaves it as it is."""
    return value if dtype is None else tirx.Cast(dtype, value)


def term(
    left: tirx.Expr, right: tirx.Expr, sums: Sums, multiply: Multiply = operator.mul
) -> tirx.Expr:
    """Return a product in the dtype of its sum."""
    if sums != MIXED:
        return multiply(narrowed(left, sums), narrowed(right, sums))
    return tirx.Cast("float32", tirx.Cast("float16", left) * tirx.Cast("float16", right))


def widened(result: te.Tensor, dtype: str) -> te.Tensor:
    """Convert sums to the dtype of the tensors, by an elementwise block after the anchor."""
    if result.dtype == dtype:
        return result
    return te.compute(result.shape, lambda *i: tirx.Cast(dtype, result(*i)), name="widen")


def convolution(
    padded: te.Tensor,
    w: te.Tensor,
    channel: Channel,
    strides: tuple[int, int],
    dilation: tuple[int, int],
    attrs: dict[str, str],
    *,
    sums: Sums,
    multiply: Multiply = operator.mul,
) -> te.Tensor:
    """Sum over the window and the channels that ``channel`` returns, for several families."""
    outputs, inputs, *kernel, block = (int(d) for d in w.shape)
    i = te.reduce_axis((0, inputs), name="i")
    p = te.reduce_axis((0, kernel[0]), name="p")
    q = te.reduce_axis((0, kernel[1]), name="q")

    def body(n, oo, h, v, o):  # type: ignore[no-untyped-def]
        row, column = h * strides[0] + p * dilation[0], v * strides[1] + q * dilation[1]
        source, *lane = channel(oo, o, i)
        value = padded(n, source, row, column, *lane)
        return te.sum(term(value, w[oo, i, p, q, o], sums, multiply), axis=[i, p, q])

    shape = (padded.shape[0], outputs, *windows_in(padded, kernel, strides, dilation), block)
    result = te.compute(shape, body, name=attrs[FAMILY], attrs=attrs)
    return widened(result, padded.dtype)


def batch_shape(x: te.Tensor, w: te.Tensor, axes: int = 2) -> tuple[int, ...]:
    """Return the leading axes of a matrix product, by NumPy's broadcasting.

    ``w`` has ``axes`` axes after its own leading ones.
    """
    leads = (x.shape[:-2], w.shape[:-axes])
    return np.broadcast_shapes(*(tuple(int(d) for d in lead) for lead in leads))


def batch_index(t: te.Tensor, axes: int, index: Sequence[tirx.Expr]) -> list[tirx.Expr]:
    """Return the leading indices of an operand at those of the product."""
    own = t.shape[:-axes]
    taken = index[len(index) - len(own) :]
    return [i if int(extent) > 1 else 0 for i, extent in zip(taken, own, strict=True)]


def padded_matrix(
    t: te.Tensor,
    lead: Sequence[int],
    extents: tuple[int, int],
    role: str,
    convert: Callable[[tirx.Expr], tirx.Expr] = lambda value: value,
) -> te.Tensor:
    """Return the matrices ``t[.., I, J]`` of a batch, converted and zero-padded to ``extents``."""

    def body(*index: tirx.Expr) -> tirx.Expr:
        *batch, i, j = index
        pairs = zip((i, j), t.shape[-2:], extents, strict=True)
        tests = [at < own for at, own, full in pairs if int(own) < full]
        return or_zero(tests, convert(t(*batch_index(t, 2, batch), i, j)))

    return te.compute((*lead, *extents), body, name=role, attrs={ROLE: role})


def or_zero(tests: Sequence[tirx.Expr], value: tirx.Expr) -> tirx.Expr:
    """Return a value if all tests hold, else zero."""
    zero = tirx.const(0, value.ty.dtype)
    return tirx.if_then_else(tirx.all(*tests), value, zero) if tests else value
