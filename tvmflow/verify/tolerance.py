"""Tolerances of results against a reference: one table, and the comparison.

Two errors are reported of an output `a` and its reference `b`, with
``scale = max|b|``:

- the largest absolute error, ``max|a - b|``;
- the largest relative error, ``max|a - b| / scale``.  Dividing by the output's
  magnitude and not by each element keeps elements that are nearly zero by
  cancellation from dominating.

An output passes when every element satisfies
``|a - b| <= relative * |b| + absolute * scale``: large elements must agree to
`relative`, small ones to `absolute` of the output's magnitude.  NaN and infinity
must be at the same positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np

from ..runtime.json_types import JsonMapping


@dataclass(frozen=True)
class Tolerance:
    """Largest allowed distance of an element from the reference, with its reason."""

    relative: float  #: Allowed share of the element's own magnitude.
    absolute: float  #: Allowed share of the largest magnitude in the output.
    reason: str  #: Reason why not less is allowed.


#: Tolerances of whole networks, by the dtype of the output.
NETWORK = {
    "float32": Tolerance(
        relative=1e-4,
        absolute=1e-5,
        reason="fp32 sums in another order: a sum of 65,536 products differs by about "
        "sqrt(65536) * 2^-24 = 1.5e-5 of its magnitude, and layers add up",
    ),
    "float16": Tolerance(
        relative=2e-2,
        absolute=5e-3,
        reason="every layer rounds its result to 11 bits (4.9e-4); over 50 layers the errors add "
        "up to sqrt(50) times that, 3.5e-3 of the magnitude, when they are independent",
    ),
    "bfloat16": Tolerance(
        relative=2e-1,
        absolute=4e-2,
        reason="every layer rounds its result to 8 bits (3.9e-3), eight times as coarse as float16",
    ),
    "float64": Tolerance(
        relative=1e-9,
        absolute=1e-10,
        reason="as float32 with 53 bits, but exp and log of the host's library differ in the last "
        "digits",
    ),
}

#: Tolerances of whole networks that store fp32 tensors in 16 bits (``--dtype fp16``).
STORED_AS_HALF = {**NETWORK, "float32": NETWORK["float16"]}

#: Largest relative error of rounding to the 11 bits of half precision.
HALF_ROUNDING = 2.0**-11


def summed_in_half(lengths: Sequence[int]) -> dict[str, Tolerance]:
    """Return tolerances of whole networks with sums of these lengths in 16 bits.

    Every addition rounds the partial sum, by ``u / sqrt(3)`` of it in the mean square where
    ``u = 2^-11`` is the most. After k of n products of either sign it is ``sqrt(k / n)`` of
    the whole, and the n errors are independent: together
    ``u * sqrt(sum_k k / n / 3) = u * sqrt(n / 6)`` of the sum's magnitude, 1.4 % for 4,608
    products (3x3x512). Products of one sign do better (``n / 9``). Errors of layers are
    independent, too, so that their squares add up, on top of those of storage.
    """
    error = HALF_ROUNDING * sqrt(sum(lengths) / 6)
    stored = STORED_AS_HALF["float32"]
    return {
        **STORED_AS_HALF,
        "float32": Tolerance(
            relative=stored.relative + error,
            absolute=stored.absolute + error,
            reason=f"{stored.reason}; and {len(lengths)} layers round each addition of sums of "
            f"{sum(lengths):,} products in all, {error:.1e} of the magnitude",
        ),
    }


def table_for(metadata: JsonMapping) -> dict[str, Tolerance]:
    """Return the tolerances of a module, by its storage and accumulation."""
    if lengths := metadata.get("half_sums"):
        return summed_in_half(lengths)
    return STORED_AS_HALF if is_half(metadata, "dtype") else NETWORK


def is_half(metadata: JsonMapping, option: str) -> bool:
    """Return whether an option of a module's compilation is fp16."""
    return bool(metadata.get("options", {}).get(option) == "fp16")


#: Tolerances of a single operator, by the dtype of the output, without errors of other layers.
OPERATOR = {
    "float32": Tolerance(
        relative=1e-5,
        absolute=2e-6,
        reason="fp32 sums of up to 4,608 products (3x3x512) in another order differ by about "
        "sqrt(4608) * 2^-25 = 2e-6 of their magnitude",
    ),
    "float16": Tolerance(
        relative=2e-3,
        absolute=1e-3,
        reason="the result is rounded to 11 bits (4.9e-4), and so is each intermediate that is "
        "stored",
    ),
    "bfloat16": Tolerance(
        relative=2e-2, absolute=8e-3, reason="the result is rounded to 8 bits (3.9e-3)"
    ),
    "float64": NETWORK["float64"],
}

#: Tolerance of integers and booleans, which are not rounded.
EXACT = Tolerance(relative=0.0, absolute=0.0, reason="integers and booleans are not rounded")


def tolerance_for(dtype: str, table: dict[str, Tolerance] = NETWORK) -> Tolerance:
    """Return the tolerance of a dtype: from `table` for floats, `EXACT` for others."""
    return table.get(dtype, EXACT)


@dataclass(frozen=True)
class Comparison:
    """Errors of an output compared with its reference."""

    name: str
    max_abs_error: float  #: ``max|a - b|``; infinite when NaN, infinity or the shapes disagree.
    max_rel_error: float  #: ``max|a - b| / max|b|``.
    used: float  #: Largest share of the tolerance that an element uses; passes up to 1.
    tolerance: Tolerance

    @property
    def passed(self) -> bool:
        """Return whether every element is within the tolerance."""
        return self.used <= 1.0


def compare(
    name: str, got: np.ndarray, reference: np.ndarray, tolerance: Tolerance | None = None
) -> Comparison:
    """Compare an output with its reference; `name` is for the report.

    Another shape or dtype than the reference's is an infinite error.  The default tolerance is the
    network's for the reference's dtype.
    """
    if tolerance is None:
        tolerance = tolerance_for(reference.dtype.name)
    infinite = Comparison(name, np.inf, np.inf, np.inf, tolerance)
    if got.shape != reference.shape or got.dtype != reference.dtype:
        return infinite
    if not reference.size:
        return Comparison(name, 0.0, 0.0, 0.0, tolerance)
    a, b = _widened(got), _widened(reference)
    with np.errstate(invalid="ignore"):
        # Equal infinities and NaN at the same places are no errors.
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        error = np.where(same, 0, np.abs(a - b))
        finite = np.isfinite(b)
        if not np.isfinite(error).all():
            return infinite
        magnitude = np.abs(np.where(finite, b, 0))
        scale = float(magnitude.max())
        allowed = tolerance.relative * magnitude + tolerance.absolute * scale
        # An error where none is allowed uses an infinite share.
        share = np.divide(error, allowed, out=np.full(a.shape, np.inf), where=allowed > 0)
        share[error == 0] = 0
    largest = float(error.max())
    relative = largest / scale if scale else (np.inf if largest else 0.0)
    return Comparison(name, largest, float(relative), float(share.max()), tolerance)


def assert_close(
    got: np.ndarray, reference: np.ndarray, table: dict[str, Tolerance] = NETWORK, name: str = ""
) -> None:
    """Raise `AssertionError` with the errors unless `got` is within the table's tolerance."""
    result = compare(name, got, reference, tolerance_for(reference.dtype.name, table))
    if not result.passed:
        raise AssertionError(
            f"{name or 'the result'}: max abs error {result.max_abs_error:.3g}, "
            f"max rel error {result.max_rel_error:.3g}, {result.used:.3g} times the tolerance "
            f"({result.tolerance.relative:g} of each value + {result.tolerance.absolute:g} of the "
            f"largest; shapes {got.shape} and {reference.shape}, dtypes {got.dtype} and "
            f"{reference.dtype})"
        )


def _widened(array: np.ndarray) -> np.ndarray:
    """Convert to a type in which differences neither overflow nor round."""
    if array.dtype.kind in "iub":
        # Differences of 64-bit integers need more than 64 bits in the extreme.
        return array.astype(np.longdouble if array.dtype.itemsize == 8 else np.float64)
    return array.astype(np.float64)
