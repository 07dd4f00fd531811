"""Convolutions and matrix products as one product of padded matrices, for CUDA.

Computes, with all extents padded to whole tiles (:func:`padded`)::

    left[.., M', K']    right[.., K', N']
    product[.., m, n] = sum_k left[.., m, k] * right[.., k, n]

*Convolution* (implicit GEMM): row ``m`` is a pixel of the output, column ``n`` an output
channel, and ``k`` runs over taps, blocks of input channels, and lanes; ``left`` is never in
memory as a whole, but a tile at a time is gathered by the group that multiplies it::

    x[N, I', H, W, c]        left[(n, h, w), (p, q, i', i)] = x[n, i', h*s + p*d, w*s + q*d, i]
    w[K', N']                y[n, o', h, w, o] = product[(n, h, w), (o', o)]

*Matrix product*: ``left`` and ``right`` are padded copies::

    x[.., M, K]   w[.., K, N]    y[.., m, n] = product[.., m, n]

With ``half``, both factors are rounded to 16 bits and their products summed in fp32.  That
is what tensor cores do, and exact for tensors that are stored in 16 bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import te, tirx

from .batches import batch_of, leading
from .common import FAMILY, ROLE, widened

NAME = "gemm"
LEFT, RIGHT, OUTPUT = "gemm_left", "gemm_right", "gemm_output"

#: To multiples of these are rows and columns padded.
UNITS = (128, 64, 32, 16)
#: To multiples of this is the depth padded.
DEPTH = 32
#: What the padded matrices must hold, at least, besides their padding (an assumption).
FULL = 0.6
#: Multiply-adds below which a launch takes longer than the product (an assumption).
WORK = 1 << 20


# -- what it computes ---------------------------------------------------------------------


def padded(extent: int) -> int:
    """Rows or columns as whole tiles: the largest unit that adds little, 15 % at most.

    Where every unit adds more (49 rows are 64), the fewest.
    """
    least = max(1.15 * extent, -(-extent // UNITS[-1]) * UNITS[-1])
    return next(whole for u in UNITS if (whole := -(-extent // u) * u) <= least)


def deep(extent: int) -> int:
    """The depth as whole tiles."""
    return -(-extent // DEPTH) * DEPTH


def pays(rows: int, columns: int, depth: int, batch: int = 1) -> bool:
    """Whether padded matrices are mostly the product's own, and a batch of them is large.

    At least :data:`FULL` of the multiply-adds, and :data:`WORK` of them.
    """
    own = rows * columns * depth
    whole = padded(rows) * padded(columns) * deep(depth)
    return own >= FULL * whole and batch * own >= WORK


def compute_conv(
    x: te.Tensor,
    w: te.Tensor,
    *,
    channels: int,
    outputs: int,
    kernel: tuple[int, int],
    strides: tuple[int, int],
    padding: tuple[int, int, int, int],
    dilation: tuple[int, int],
    half: bool,
) -> te.Tensor:
    """The convolution of ``channels`` to ``outputs``; shapes as in the module's docstring."""
    batch, blocks, height, width, lanes = (int(d) for d in x.shape)
    depth = int(w.shape[0])
    top, left, bottom, right = padding
    out_h = (height + top + bottom - dilation[0] * (kernel[0] - 1) - 1) // strides[0] + 1
    out_w = (width + left + right - dilation[1] * (kernel[1] - 1) - 1) // strides[1] + 1
    pixels = batch * out_h * out_w
    taps = kernel[0] * kernel[1]

    def gather(m, k):  # type: ignore[no-untyped-def]
        group, lane = tirx.floordiv(k, lanes), tirx.floormod(k, lanes)
        tap, block = tirx.floordiv(group, blocks), tirx.floormod(group, blocks)
        p, q = tirx.floordiv(tap, kernel[1]), tirx.floormod(tap, kernel[1])
        image, pixel = tirx.floordiv(m, out_h * out_w), tirx.floormod(m, out_h * out_w)
        row = tirx.floordiv(pixel, out_w) * strides[0] + p * dilation[0] - top
        column = tirx.floormod(pixel, out_w) * strides[1] + q * dilation[1] - left
        tests = []
        if padded(pixels) > pixels:
            tests.append(m < pixels)
        if depth > taps * blocks * lanes:
            tests.append(group < taps * blocks)
        if channels % lanes:
            # Lanes of padding hold anything, also NaN, which no zero weight undoes.
            tests.append(block * lanes + lane < channels)
        if top or bottom:
            tests += [row >= 0, row < height]
        if left or right:
            tests += [column >= 0, column < width]
        return _or_zero(tests, x(image, block, row, column, lane), half)

    rows = te.compute((padded(pixels), depth), gather, name=LEFT, attrs={ROLE: LEFT})
    weights = te.compute(w.shape, lambda *i: _rounded(w(*i), half), name=RIGHT, attrs={ROLE: RIGHT})
    product = _product(rows, weights, ())

    def unpack(n, oo, h, v, o):  # type: ignore[no-untyped-def]
        return product[(n * out_h + h) * out_w + v, oo * lanes + o]

    shape = (batch, -(-outputs // lanes), out_h, out_w, lanes)
    return widened(te.compute(shape, unpack, name=OUTPUT, attrs={ROLE: OUTPUT}), x.dtype)


def compute_matmul(x: te.Tensor, w: te.Tensor, units: int, *, half: bool) -> te.Tensor:
    """``x[.., M, K] @ w[.., K, N]``, the first ``units`` columns of it.

    NumPy's broadcasting of the leading axes.  Weights may have their padding already.
    """
    rows, depth = (int(d) for d in x.shape[-2:])
    lead = leading(x, w)
    whole = deep(depth)

    def pad(t: te.Tensor, extents: tuple[int, int], role: str) -> te.Tensor:
        def body(*index):  # type: ignore[no-untyped-def]
            *batch, i, j = index
            pairs = zip((i, j), t.shape[-2:], extents, strict=True)
            tests = [at < own for at, own, full in pairs if int(own) < full]
            return _or_zero(tests, t(*batch_of(t, 2, batch), i, j), half)

        return te.compute((*lead, *extents), body, name=role, attrs={ROLE: role})

    left, right = pad(x, (padded(rows), whole), LEFT), pad(w, (whole, padded(units)), RIGHT)
    product = _product(left, right, lead)
    return te.compute((*lead, rows, units), product, name=OUTPUT, attrs={ROLE: OUTPUT})


def _product(left: te.Tensor, right: te.Tensor, lead: Sequence[int]) -> te.Tensor:
    k = te.reduce_axis((0, left.shape[-1]), name="k")

    def body(*index):  # type: ignore[no-untyped-def]
        *batch, m, n = index
        factors = left(*batch, m, k), right(*batch, k, n)
        return te.sum(_widened(factors[0]) * _widened(factors[1]), axis=k)

    shape = (*lead, left.shape[-2], right.shape[-1])
    return te.compute(shape, body, name="gemm", attrs={FAMILY: NAME})


def _or_zero(tests: list[Any], value: Any, half: bool) -> Any:
    value = _rounded(value, half)
    zero = tirx.const(0, value.ty.dtype)
    return tirx.if_then_else(tirx.all(*tests), value, zero) if tests else value


def _rounded(value: Any, half: bool) -> Any:
    return tirx.Cast("float16", value) if half and str(value.ty.dtype) == "float32" else value


def _widened(value: Any) -> Any:
    return value if str(value.ty.dtype) == "float32" else tirx.Cast("float32", value)
