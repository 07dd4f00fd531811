"""Weights that a library stores in fewer bits, if these represent their values exactly.

The arrays that kernels read are examined, in any layout: a weight that was transformed for
Winograd's algorithm does not fit, however it was rounded before.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

#: Least size of a weight that is stored in fewer bits.
LEAST_BYTES = 1024
_LARGEST = 127
#: Largest relative distance of a value from a multiple of its step, due to rounding, by dtype.
_ROUNDING = {"float32": 2.0**-21, "float16": 2.0**-9}
#: Maximum number of lanes of a block of channels.
_LANES = 64


class Form(IntEnum):
    """Form of stored values: as kernels read them, in 16 bits, or as multiples of steps."""

    RAW = 0
    HALF = 1
    SCALED = 2


class Axes(IntEnum):
    """Axes along which each index has its own step: the first, the last, or both."""

    FIRST = 1
    LAST = 2
    BOTH = 3


@dataclass(frozen=True)
class SmallWeight:
    """A weight in fewer bits, in the same layout."""

    stored: np.ndarray
    form: Form
    steps: np.ndarray | None = None  #: Steps for each index of ``axes``, in their order.
    axes: Axes = Axes.BOTH


def smaller(array: np.ndarray, kind: str | None) -> SmallWeight | None:
    """Return a weight in the bits of ``kind``; ``None`` if it does not fit, or is too small."""
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
    """Return a weight as multiples of steps; ``None`` if it is not, or that saves nothing."""
    last = array.ndim - 1
    own = {Axes.FIRST: (0,), Axes.LAST: (last,), Axes.BOTH: (0, last)}[axes]
    others = tuple(axis for axis in range(array.ndim) if axis not in own)
    if not others or (axes == Axes.BOTH and array.shape[-1] > _LANES):
        return None
    numbers = array.astype(np.float32)
    largest = np.abs(numbers).max(axis=others, keepdims=True)
    # Steps take four bytes each, so few values per step would save nothing.
    if not np.isfinite(largest).all() or 8 * largest.size > array.size:
        return None
    steps = largest / np.float32(_LARGEST)
    times = np.rint(np.divide(numbers, steps, out=np.zeros_like(numbers), where=steps > 0))
    error = np.abs(times * steps - numbers)
    if (error > _ROUNDING[array.dtype.name] * np.abs(numbers)).any():
        return None
    return SmallWeight(times.astype(np.int8), Form.SCALED, steps.ravel(), axes)
