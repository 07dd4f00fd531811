"""The 8-bit tensors behind differences in int32, which is what quantized operators sum up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from tvm import relax

from ...graph.rewriter import constant_array, op_name
from ...schedules.integers import Integers, narrowest, sums_of

if TYPE_CHECKING:
    from ..layout import LayoutPass

_NARROW = ("int8", "uint8")


@dataclass(frozen=True)
class Quantized:
    """An operand of 8 bits, the weights without their zero points, and how to multiply them."""

    source: relax.Expr
    weight: np.ndarray
    integers: Integers


def quantized(
    layout: LayoutPass,
    x: relax.Expr,
    weight: np.ndarray,
    axes: tuple[int, ...],
    *,
    staged: bool,
) -> Quantized | None:
    """What a product in int32 multiplies, if its left operand comes from 8 bits.

    ``axes`` are those of the weights that are summed up; ``staged`` says whether the block that
    converts the operand is the only one that may copy it to private memory.
    """
    found = _source(layout, x)
    if found is None or weight.dtype != np.int32:
        return None
    source, zero = found
    limits = np.iinfo(str(source.ty.dtype))
    largest = max(limits.max - zero, zero - limits.min)
    sums = sums_of(weight, axes, largest)
    return Quantized(source, narrowest(weight), Integers(zero, sums, staged))


def _source(layout: LayoutPass, x: relax.Expr) -> tuple[relax.Expr, int] | None:
    """The 8-bit tensor that ``x`` is, less one constant zero point."""
    zero, value = 0, _definition(layout, x)
    if op_name(value) == "relax.subtract":
        point = constant_array(value.args[1])
        if point is None or point.size != 1:
            return None
        zero, value = int(point.reshape(())), _definition(layout, value.args[0])
    if op_name(value) != "relax.astype" or str(value.args[0].ty.dtype) not in _NARROW:
        return None
    return value.args[0], zero


def _definition(layout: LayoutPass, expr: relax.Expr) -> Any:
    return layout.definitions.get(expr, expr)
