"""The mean of a function of boxes over those that are valid, in one pass.

What it computes::

    sum    = Σ over b < B, j < M with valid(b, j) of term(b, j)
    number = Σ over b < B, j < M with valid(b, j) of 1
    mean   = sum / max(number, 1)

A term of a box that is not valid is not computed: what it would read may not even exist, as
in packed tensors, and what it would be, a NaN say, reaches nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import te, tirx

from .common import FAMILY

NAME = "masked_mean"


def compute(
    term: Callable[[Any, Any], Any],
    valid: Callable[[Any, Any], Any],
    boxes: Sequence[Any],
    dtype: str,
) -> tuple[te.Tensor, te.Tensor]:
    """State the mean.

    Parameters
    ----------
    term
        From the position of a sample and of a box in it to an fp32 expression.
    valid
        From the same to a condition.  One of the form ``j < limit(b)`` is recognised: boxes from
        ``limit(b)`` on are not even looked at.
    boxes
        Samples and boxes of each, ``B`` and ``M``; numbers or variables.
    dtype
        Of the mean, which is computed in fp32.

    Returns
    -------
    mean, number
        Scalars, the second one int32.
    """
    b, j = (te.reduce_axis((0, extent), name) for extent, name in zip(boxes, "bj", strict=True))
    both = te.comm_reducer(
        lambda some, more: (some[0] + more[0], some[1] + more[1]),
        lambda *dtypes: tuple(tirx.const(0, dtype) for dtype in dtypes),
        name="sum_and_number",
    )

    def chosen() -> Any:
        value = tirx.if_then_else(valid(b, j), term(b, j), tirx.const(0, "float32"))
        return both((value, tirx.Cast("int32", valid(b, j))), axis=[b, j])

    total, number = te.compute((), chosen, name="masked_sum", attrs={FAMILY: NAME})
    divisor = tirx.Cast("float32", tirx.max(number(), tirx.const(1, "int32")))
    mean = te.compute((), lambda: tirx.Cast(dtype, total() / divisor), name="masked_mean")
    return mean, number
