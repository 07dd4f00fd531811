"""Recognize 8-bit operands of quantized sums, whose zero points are subtracted in int32."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from tvm import relax

from ...ir import blocked
from ...ir.rewriter import narrow_source
from ...schedules.integers import Dots, Integers, narrowest, sums_of
from .layout import LayoutPass


@dataclass(frozen=True)
class Quantized:
    """A product of 8-bit integers: its operands, and how to compute it."""

    source: relax.Expr
    #: The weights without zero points; for dot products, four int8 packed in an int32.
    weight: np.ndarray
    integers: Integers | Dots
    #: Excess of the sums for each output, to be subtracted.
    excess: np.ndarray | None = None


def quantized(
    layout: LayoutPass,
    x: relax.Expr,
    weight: np.ndarray,
    axes: tuple[int, ...],
    *,
    dots: bool,
    staged: bool = False,
) -> Quantized | None:
    """Return the operands of a product in int32 if its left operand comes from 8 bits.

    ``axes`` are the summed axes of the weights; with ``dots``, the first of them is packed in fours
    for dot products.  Without ``dots``, ``staged`` says whether the block that converts the operand
    is the only one that may copy it to private memory.
    """
    found = narrow_source(x, lambda expr: layout.definitions.get(expr, expr))
    if found is None or weight.dtype != np.int32:
        return None
    source, zero = found
    limits = np.iinfo(str(source.ty.dtype))
    narrow = narrowest(weight)
    if dots and narrow.dtype == np.int8:
        signed = bool(layout.device.signed_dots)
        zero -= limits.min + 128 * signed
        excess = zero * weight.sum(axis=axes)
        words = blocked.words(narrow, axes[0])
        return Quantized(source, words, Dots(zero, signed), excess.astype(np.int32))
    largest = max(limits.max - zero, zero - limits.min)
    sums = sums_of(weight, axes, largest)
    return Quantized(source, narrow, Integers(zero, sums, staged))
