"""Weights as a library stores them in fewer bits, where they are numbers that those hold.

Which they are is seen in the arrays that kernels read, whatever layout these have: a weight that
Winograd's algorithm has transformed is none, however it was rounded before.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

#: Smaller ones are stored as they are.
LEAST_BYTES = 1024
_LARGEST = 127
#: How far a number may be from its step's multiple: what arithmetic in its precision leaves.
_ROUNDING = {"float32": 2.0**-21, "float16": 2.0**-9}
#: Lanes of a block of channels, at most.
_LANES = 64


class Form(IntEnum):
    """How numbers are stored."""

    AS_THEY_ARE = 0
    HALF = 1
    STEPS = 2


class Axes(IntEnum):
    """Of which axes each index has its own step: of the first, the last, or both."""

    FIRST = 1
    LAST = 2
    BOTH = 3


@dataclass(frozen=True)
class SmallWeight:
    """A weight of fewer bits, in the same layout."""

    stored: np.ndarray
    form: Form
    steps: np.ndarray | None = None  #: Of ``axes``, in their order.
    axes: Axes = Axes.BOTH


def smaller(array: np.ndarray, kind: str | None) -> SmallWeight | None:
    """Return what a weight is stored as; ``None``: as it is."""
    if kind is None or array.dtype.name not in _ROUNDING or array.nbytes < LEAST_BYTES:
        return None
    if kind == "fp16":
        return _half(array)
    found = (_in_steps(array, axes) for axes in (Axes.BOTH, Axes.LAST, Axes.FIRST))
    return next((each for each in found if each is not None), None)


def _half(array: np.ndarray) -> SmallWeight | None:
    if array.dtype != np.float32:
        return None
    with np.errstate(over="ignore"):
        stored = array.astype(np.float16)
    return SmallWeight(stored, Form.HALF) if np.array_equal(stored, array) else None


def _in_steps(array: np.ndarray, axes: Axes) -> SmallWeight | None:
    """A weight as multiples of steps; ``None`` if it has others, or as many steps as numbers."""
    last = array.ndim - 1
    own = {Axes.FIRST: (0,), Axes.LAST: (last,), Axes.BOTH: (0, last)}[axes]
    others = tuple(axis for axis in range(array.ndim) if axis not in own)
    if not others or (axes == Axes.BOTH and array.shape[-1] > _LANES):
        return None
    numbers = array.astype(np.float32)
    largest = np.abs(numbers).max(axis=others, keepdims=True)
    # A step for four numbers is as large as they.
    if not np.isfinite(largest).all() or 8 * largest.size > array.size:
        return None
    steps = largest / np.float32(_LARGEST)
    times = np.rint(np.divide(numbers, steps, out=np.zeros_like(numbers), where=steps > 0))
    error = np.abs(times * steps - numbers)
    if (error > _ROUNDING[array.dtype.name] * np.abs(numbers)).any():
        return None
    return SmallWeight(times.astype(np.int8), Form.STEPS, steps.ravel(), axes)
