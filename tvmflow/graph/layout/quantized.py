"""The 8-bit tensors behind differences in int32, which is what quantized operators sum up."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from tvm import relax

from ...ir import blocked
from ...ir.rewriter import narrow_source
from ...schedules.integers import Dots, Integers, narrowest, sums_of
from .rule import Layout


@dataclass(frozen=True)
class Quantized:
    """A product of 8-bit numbers: its operands, and how to compute it."""

    source: relax.Expr
    #: Without their zero points; four of int8 in an int32 for dot products.
    weight: np.ndarray
    integers: Integers | Dots
    #: The excess of the sums, for each output.
    excess: np.ndarray | None = None


def quantized(
    layout: Layout,
    x: relax.Expr,
    weight: np.ndarray,
    axes: tuple[int, ...],
    *,
    dots: bool,
    staged: bool = False,
) -> Quantized | None:
    """The operands of a product in int32, if its left operand comes from 8 bits.

    ``axes`` are those of the weights that are summed up, and first the one that dot products
    take fours of, if there are ``dots``.  Else ``staged`` says whether the block that converts the
    operand is the only one that may copy it to private memory.
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
