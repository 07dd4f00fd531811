"""Find the valid boxes of a batch and their targets.

Predictions are ``[B, M, 4]``, or ``[M, 4]`` for one sample.  Targets have the same shape, or are
packed ``[P, 4]``: with offsets ``[B + 1]``, box ``j`` of sample ``b`` is row ``offsets[b] + j`` and
sample ``b`` has ``offsets[b + 1] - offsets[b]`` boxes.  Otherwise a count ``[B]`` of each sample's
boxes or a mask ``[B, M]`` says which boxes are valid; without any of these, a box is valid if its
target's y2 is above 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import te, tirx

from ..errors import InputError, ShapeError
from ..ir.operator import Arrays, Operand, Types
from ..ir.tensors import TensorType
from ..schedules import boxes

INTEGERS = ("int32", "int64")
#: Inputs after ``pred`` and ``target``, of which a node has at most one.
FORMS = (
    Operand("count", INTEGERS, optional=True, shapes=("B",)),
    Operand("mask", ("bool", "uint8"), optional=True, shapes=("B, M", "M")),
    Operand("offsets", INTEGERS, optional=True, shapes=("B + 1",)),
)

Index = Sequence[tirx.Expr]


def check_pair(operator: str, pred: TensorType, target: TensorType, *, packed: bool) -> None:
    """Raise `ShapeError` with both shapes if the shapes or dtypes of boxes do not fit."""
    expected = "[P, 4]" if packed else "the shape of pred"
    fits = len(target.shape) == 2 if packed else target.shape == pred.shape
    if len(pred.shape) not in (2, 3) or pred.shape[-1] != 4:
        raise ShapeError(
            f"{operator} is given pred {list(pred.shape)}, expected [B, M, 4] or [M, 4].",
            remedy="Give each box as x1 y1 x2 y2 in the last dimension.",
        )
    if not fits or target.shape[-1] != 4:
        raise ShapeError(
            f"{operator} is given pred {list(pred.shape)} and target {list(target.shape)}, "
            f"expected target of {expected}.",
            remedy="Give a target for each predicted box, or packed targets with offsets.",
        )
    if pred.dtype != target.dtype and "float64" in (pred.dtype, target.dtype):
        raise ShapeError(
            f"{operator} is given pred {pred} and target {target}, expected float64 for both or "
            "for neither.",
            remedy="Convert one of them.",
        )


def check_forms(operator: str, pred: TensorType, forms: Types) -> None:
    """Raise `ShapeError` for several forms of validity, or one that does not fit ``pred``."""
    given = [(o.name, kind) for o, kind in zip(FORMS, forms, strict=True) if kind is not None]
    if len(given) > 1:
        raise ShapeError(
            f"{operator} is given {' and '.join(f'{n} {list(k.shape)}' for n, k in given)}, "
            "expected at most one of count, mask and offsets.",
            remedy="Leave all but one out.",
        )
    samples = pred.shape[0] if len(pred.shape) == 3 else 1
    fitting = {"count": (samples,), "mask": pred.shape[:-1], "offsets": (samples + 1,)}
    for name, kind in given:
        if kind.shape != fitting[name]:
            raise ShapeError(
                f"{operator} is given pred {list(pred.shape)} and {name} {list(kind.shape)}, "
                f"expected {name} {list(fitting[name])}.",
                remedy=f"Give the {name} of this batch.",
            )


def check_values(operator: str, arrays: Arrays) -> None:
    """Raise `InputError` for the first known count or offset that is out of range."""
    pred, target, count, _, offsets = arrays[:5]
    most = None if pred is None else pred.shape[-2]
    if count is not None:
        _check_counts(operator, "count", np.asarray(count), most)
    if offsets is not None:
        offsets = np.asarray(offsets)
        rows = None if target is None else len(target)
        wrong = offsets < 0 if rows is None else (offsets < 0) | (offsets > rows)
        if wrong.any():
            at = int(np.argmax(wrong))
            known = "" if rows is None else f" to {rows}, the rows of target {list(target.shape)}"
            raise InputError(
                f"{operator} is given offsets[{at}] = {offsets[at]}, expected 0{known}.",
                remedy="Give where each sample begins in target, and where the last one ends.",
            )
        _check_counts(
            operator, "offsets, whose differences are the counts,", np.diff(offsets), most
        )


def _check_counts(operator: str, what: str, counts: np.ndarray, most: int | None) -> None:
    """Raise `InputError` for numbers of boxes that are negative, or more than there are."""
    wrong = counts < 0 if most is None else (counts < 0) | (counts > most)
    if wrong.any():
        sample = int(np.argmax(wrong))
        known = "at least 0" if most is None else f"0 to {most}, the boxes of a sample of pred"
        raise InputError(
            f"{operator} is given {what} of {counts[sample]} boxes in sample {sample}, expected "
            f"{known}.",
            remedy="Give how many boxes of each sample count.",
        )


@dataclass(frozen=True)
class Batch:
    """Predictions, targets and one form of validity, as TE tensors."""

    pred: te.Tensor
    target: te.Tensor
    #: The form of validity: a tensor, and ``None`` for the other forms.
    count: Any = None
    mask: Any = None
    offsets: Any = None

    @property
    def boxes(self) -> list[Any]:
        """Return the extents of boxes: ``[B, M]`` or ``[M]``."""
        return list(self.pred.shape[:-1])

    def predicted(self, box: Index) -> list[tirx.Expr]:
        """Return the four coordinates of a predicted box."""
        return [self.pred(*box, corner) for corner in range(4)]

    def wanted(self, box: Index) -> list[tirx.Expr]:
        """Return the four coordinates of its target; a packed one exists only for valid boxes."""
        place = box if self.offsets is None else [self._row(box)]
        return [self.target(*place, corner) for corner in range(4)]

    def valid(self, box: Index) -> tirx.Expr:
        """Return whether a box is valid."""
        if self.mask is not None:
            mask, dtype = self.mask(*box), self.mask.dtype
            return mask if dtype == "bool" else mask != tirx.const(0, dtype)
        if self.count is None and self.offsets is None:
            y2 = self.target(*box, 3)
            dtype = boxes.arithmetic(self.target.dtype)
            return y2.astype(dtype) > tirx.const(0, dtype)
        return box[-1] < self._limit(box)

    def row(self, box: Index) -> tirx.Expr:
        """Return the row of a valid box in the packed target, -1 for other boxes."""
        row = self._row(box)
        return tirx.if_then_else(self.valid(box), row, tirx.const(-1, _dtype(row)))

    def _row(self, box: Index) -> tirx.Expr:
        return self._bound(_sample(box), box[-1]) + box[-1]

    def _limit(self, box: Index) -> tirx.Expr:
        """Return the number of valid boxes of a sample; wrong offsets may say more than M."""
        sample, like = _sample(box), box[-1]
        if self.count is not None:
            # Clamp before the conversion: a large number of 64 bits could look small in 32.
            last = self.pred.shape[-2]
            return _in_range(self.count(sample), last, self.count.dtype).astype(_dtype(like))
        return self._bound(sample + 1, like) - self._bound(sample, like)

    def _bound(self, sample: tirx.Expr, like: tirx.Expr) -> tirx.Expr:
        """Return an offset, clamped into the packed target, in the dtype of an index."""
        rows = self.target.shape[0]
        return _in_range(self.offsets(sample), rows, self.offsets.dtype).astype(_dtype(like))


def _sample(box: Index) -> tirx.Expr:
    """Return the index of a box's sample."""
    return box[0] if len(box) == 2 else tirx.const(0, _dtype(box[0]))


def _in_range(value: tirx.Expr, last: tirx.Expr, dtype: str) -> tirx.Expr:
    """Return a number, clamped to 0 to ``last``."""
    return tirx.Max(tirx.Min(value, last.astype(dtype)), tirx.const(0, dtype))


def _dtype(value: tirx.Expr) -> str:
    return str(value.ty.dtype)
