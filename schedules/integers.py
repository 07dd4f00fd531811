"""Sums of products of 8-bit numbers, around the computations of the families.

Products of 8-bit numbers have at most 16 bits.  A sum of them is exact in fp32 up to 2^24, and
fp32 multiplies and adds in one instruction of every device, where int32 takes two (mobile GPUs:
a product at a quarter of the rate).  So sums are taken in fp32 where the weights, which are
constants, say that none can be larger; else in int32.  Tensors and weights stay 8-bit in memory.

    x[..]: uint8 or int8    w[..]: int8 (int16 with a zero point beyond it)    y[..]: int32
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import te, tirx

from .common import PAD, ROLE

#: Up to here all integers are fp32 numbers.
EXACT_LIMIT = 1 << 24


def sums_of(weight: np.ndarray, axes: tuple[int, ...], largest: int) -> str:
    """The dtype for sums over ``axes`` of weights times numbers of magnitude ``largest``."""
    bound = np.abs(weight.astype(np.int64)).sum(axis=axes).max(initial=0) * largest
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
    """How a computation of floats becomes one of 8-bit numbers."""

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
