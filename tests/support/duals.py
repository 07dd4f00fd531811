"""Forward-mode automatic differentiation in float64: numbers that carry their derivatives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Dual:
    """A number and its derivatives with respect to some variables.

    Parameters
    ----------
    value
        The number.
    slope
        One derivative per variable.
    """

    value: float
    slope: np.ndarray

    def __add__(self, other: Dual | float) -> Dual:
        other = self._of(other)
        return Dual(self.value + other.value, self.slope + other.slope)

    def __sub__(self, other: Dual | float) -> Dual:
        other = self._of(other)
        return Dual(self.value - other.value, self.slope - other.slope)

    def __mul__(self, other: Dual | float) -> Dual:
        other = self._of(other)
        return Dual(self.value * other.value, self.value * other.slope + other.value * self.slope)

    def __truediv__(self, other: Dual | float) -> Dual:
        other = self._of(other)
        value = self.value / other.value
        return Dual(value, (self.slope - value * other.slope) / other.value)

    def _of(self, number: Dual | float) -> Dual:
        return number if isinstance(number, Dual) else Dual(number, np.zeros_like(self.slope))


def variables(values: Sequence[float]) -> list[Dual]:
    """Return numbers to differentiate with respect to."""
    return [Dual(float(v), row) for v, row in zip(values, np.eye(len(values)), strict=True)]


def maximum(a: Dual, b: Dual) -> Dual:
    """Return the larger one; of two equal ones each has half of the derivative, as in PyTorch."""
    if a.value == b.value:
        return Dual(a.value, (a.slope + b.slope) / 2)
    return a if a.value > b.value else b


def minimum(a: Dual, b: Dual) -> Dual:
    """Return the smaller one, with the same rule."""
    if a.value == b.value:
        return Dual(a.value, (a.slope + b.slope) / 2)
    return a if a.value < b.value else b


def positive(a: Dual) -> Dual:
    """Return at least 0; at 0 the derivative passes, as with PyTorch's ``clamp(min=0)``."""
    return a if a.value >= 0 else Dual(0.0, np.zeros_like(a.slope))
