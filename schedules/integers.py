"""Sums of products of 8-bit numbers, around the computations of the families.

**Dot products.** Where weights fit int8 without their zero point, four input channels are
multiplied at once (:mod:`tvmflow.codegen.dot_products`): an element of ``x`` and of ``w`` holds
four of them.  The zero point of ``x`` leaves the sums, ``sum((x - z) w) = sum(x w) - z sum(w)``;
the last term is a constant of each output channel.  Padding has the value ``z``, and int8 becomes
uint8 by 128 more, also in ``z``; where both factors are signed (`Device.signed_dots`), uint8
becomes int8.  Input channels are padded to fours, their weights with zeros.

    x[..]: uint8 or int8    words of four: int32    w[..]: int32, four of int8    y[..]: int32

**Single products**, in depthwise convolutions and for weights beyond int8.  Products of 8-bit
numbers have at most 16 bits.  A sum of them is exact in fp32 up to 2^24, and fp32 multiplies and
adds in one instruction of every device, where int32 takes two (mobile GPUs: a product at a quarter
of the rate).  So sums are taken in fp32 where the weights, which are constants, say that none can
be larger; else in int32.  Tensors and weights stay 8-bit in memory.

    x[..]: uint8 or int8    w[..]: int8 (int16 with a zero point beyond it)    y[..]: int32
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import te, tirx

from ..ir.dot_products import dot
from .common import PAD, ROLE
from .definitions import pad_spatial

#: Up to here all integers are fp32 numbers.
EXACT_LIMIT = 1 << 24


def sums_of(weight: np.ndarray, axes: tuple[int, ...], largest: int) -> str:
    """The dtype for sums over ``axes`` of weights times numbers of magnitude ``largest``."""
    bound = np.abs(weight).sum(axis=axes, dtype=np.int64).max(initial=0) * largest
    return "float32" if bound <= EXACT_LIMIT else "int32"


def narrowest(weight: np.ndarray) -> np.ndarray:
    """The same integers in the narrowest type that has them all."""
    for dtype in (np.int8, np.int16):
        limits = np.iinfo(dtype)
        if weight.size and limits.min <= weight.min() and weight.max() <= limits.max:
            return weight.astype(dtype)
    return weight


@dataclass(frozen=True)
class Integers:
    """A computation of floats as one of 8-bit numbers, product by product."""

    #: Zero point of the left operand.
    zero: int
    #: Dtype of the sums.
    sums: str
    #: Whether no other block copies the left operand: then that which converts it may.
    staged: bool

    def around(self, compute: Callable[..., te.Tensor]) -> Callable[..., te.Tensor]:
        """``compute`` of the operands without their zero points, with a result of int32."""

        def wrapped(x: te.Tensor, w: te.Tensor, *args: Any, **options: Any) -> te.Tensor:
            zero = tirx.const(self.zero, self.sums)
            left = te.compute(
                x.shape,
                lambda *i: tirx.Cast(self.sums, x(*i)) - zero,
                name="centre",
                attrs={ROLE: PAD} if self.staged else {},
            )
            right = te.compute(w.shape, lambda *i: tirx.Cast(self.sums, w(*i)), name="widen_weight")
            result = compute(left, right, *args, **options)
            if self.sums == "int32":
                return result
            return te.compute(result.shape, lambda *i: tirx.Cast("int32", result(*i)), name="count")

        return wrapped


#: Bytes of a word that are added up in one dot product.
WORD = 4


def _word_of(byte: int) -> int:
    """An int32 of four times the same byte."""
    return int.from_bytes([byte & 255] * WORD, "little", signed=True)


@dataclass(frozen=True)
class Dots:
    """A computation of floats as one of dot products."""

    #: Zero point of the left operand as bytes that are unsigned, or ``signed``.
    zero: int
    signed: bool = False

    def around(self, compute: Callable[..., te.Tensor]) -> Callable[..., te.Tensor]:
        """``compute`` of words; the zero point is still in the result, of int32."""

        def wrapped(
            x: te.Tensor,
            w: te.Tensor,
            *args: Any,
            padding: tuple[int, int, int, int] | None = None,
            **options: Any,
        ) -> te.Tensor:
            if padding is None:
                left = words(x, len(x.shape) - 1, signed=self.signed)
            else:
                # Copied to private memory first where a window reads words again and again: by the
                # block that pads, where there is one.
                pointwise = int(w.shape[2]) == int(w.shape[3]) == 1
                copied = not pointwise and not any(padding)
                axis = 4 if len(x.shape) == 5 else 1
                left = words(x, axis, signed=self.signed, copied=copied)
                left = pad_spatial(left, padding, _word_of(self.zero))
                options["padding"] = (0, 0, 0, 0)
            return compute(left, w, *args, multiply=product_of_words, **options)

        return wrapped


def product_of_words(x: tirx.Expr, w: tirx.Expr) -> tirx.Expr:
    """The dot product of two words."""
    return dot(tirx.const(0, "int32"), x, w)


def words(x: te.Tensor, axis: int, *, signed: bool = False, copied: bool = False) -> te.Tensor:
    """Four neighbours along an axis as the bytes of an int32, the first one lowest."""
    extent = int(x.shape[axis])
    shape = [*x.shape[:axis], -(-extent // WORD), *x.shape[axis + 1 :]]

    def word(*index: tirx.Expr) -> tirx.Expr:
        total = tirx.const(0, "uint32")
        for byte in range(WORD if extent > WORD else extent):
            position = index[axis] * WORD + byte
            value = tirx.Cast("uint8", x(*index[:axis], position, *index[axis + 1 :]))
            if extent > WORD and byte >= (extent % WORD or WORD):
                value = tirx.if_then_else(position < extent, value, tirx.const(0, "uint8"))
            total = total | (tirx.Cast("uint32", value) << tirx.const(8 * byte, "uint32"))
        found = tirx.Cast("int32", total)
        as_is = x.dtype == ("int8" if signed else "uint8")
        return found if as_is else found ^ tirx.const(_word_of(128), "int32")

    return te.compute(shape, word, name="words", attrs={ROLE: PAD} if copied else {})
