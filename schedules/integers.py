"""Sums of products of 8-bit numbers, as wrappers of the families' computations.

**Dot products.** If weights fit int8 without their zero point, four input channels are multiplied
at once (:mod:`tvmflow.codegen.dot_products`): an element of ``x`` and of ``w`` holds four of
them.  The zero point of ``x`` is moved out of the sums, ``sum((x - z) w) = sum(x w) - z sum(w)``;
the last term is a constant of each output channel.  Padding has the value ``z``.  int8 becomes
uint8 by adding 128, also to ``z``; if both factors are signed (`Device.signed_dots`), uint8
becomes int8.  Input channels are padded to multiples of four, their weights with zeros.

    x[..]: uint8 or int8    words of four: int32    w[..]: int32, four of int8    y[..]: int32

**Single products**, in depthwise convolutions and for weights that exceed int8.  Products of 8-bit
numbers have at most 16 bits.  A sum of them is exact in fp32 up to 2^24, and fp32 multiplies and
adds in one instruction on every device, while int32 takes two (mobile GPUs: a product at a quarter
of the rate).  Sums are therefore in fp32 if the constant weights prove that none can be larger;
else in int32.  Tensors and weights stay 8-bit in memory.

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

#: Largest integer up to which all are exact in fp32.
EXACT_LIMIT = 1 << 24


def sums_of(weight: np.ndarray, axes: tuple[int, ...], largest: int) -> str:
    """Return the dtype for sums over ``axes`` of weights times numbers up to ``largest``."""
    bound = np.abs(weight).sum(axis=axes, dtype=np.int64).max(initial=0) * largest
    return "float32" if bound <= EXACT_LIMIT else "int32"


def narrowest(weight: np.ndarray) -> np.ndarray:
    """Return the integers in the narrowest dtype that holds them all."""
    for dtype in (np.int8, np.int16):
        limits = np.iinfo(dtype)
        if weight.size and limits.min <= weight.min() and weight.max() <= limits.max:
            return weight.astype(dtype)
    return weight


@dataclass(frozen=True)
class Integers:
    """Wrapper that computes with 8-bit numbers, product by product."""

    #: Zero point of the left operand.
    zero: int
    #: Dtype of the sums.
    sums: str
    #: Whether no other block copies the left operand, so that its conversion may.
    staged: bool

    def around(self, compute: Callable[..., te.Tensor]) -> Callable[..., te.Tensor]:
        """Wrap ``compute`` to get operands without zero points, and return int32."""

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


#: Bytes of a word, which one dot product adds up.
WORD = 4


def _word_of(byte: int) -> int:
    """Return an int32 that repeats a byte four times."""
    return int.from_bytes([byte & 255] * WORD, "little", signed=True)


@dataclass(frozen=True)
class Dots:
    """Wrapper that computes with dot products of words."""

    #: Zero point of the left operand, whose bytes are unsigned or ``signed``.
    zero: int
    signed: bool = False

    def around(self, compute: Callable[..., te.Tensor]) -> Callable[..., te.Tensor]:
        """Wrap ``compute`` to get words and return int32, in which the zero point remains."""

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
                # A window that reads words repeatedly reads a copy in private memory, made by the
                # block that pads, if there is one.
                pointwise = int(w.shape[2]) == int(w.shape[3]) == 1
                copied = not pointwise and not any(padding)
                axis = 4 if len(x.shape) == 5 else 1
                left = words(x, axis, signed=self.signed, copied=copied)
                left = pad_spatial(left, padding, _word_of(self.zero))
                options["padding"] = (0, 0, 0, 0)
            return compute(left, w, *args, multiply=product_of_words, **options)

        return wrapped


def product_of_words(x: tirx.Expr, w: tirx.Expr) -> tirx.Expr:
    """Return the dot product of two words."""
    return dot(tirx.const(0, "int32"), x, w)


def words(x: te.Tensor, axis: int, *, signed: bool = False, copied: bool = False) -> te.Tensor:
    """Return four neighbours along an axis as the bytes of an int32, the first one lowest."""
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
