"""Winograd's convolution F(m×m, 3×3): its matrices, and sums with them as TE.

``m`` outputs of a correlation with 3 taps are interpolated from products at ``a = m + 2``
points, one of them at infinity (Toom-Cook; Lavin and Gray, "Fast Algorithms for Convolutional
Neural Networks", 2016). In two dimensions, for a tile ``d`` of ``a×a`` inputs and taps ``g``::

    Y = AT [(G g GT) * (BT d B)] A          a*a products in place of 9*m*m

Over the blocked layout this is three primary functions, ``T`` tiles in ``R`` rows::

    x[N, I', H, W, c]   ->  v[a*a, I', R, T/R, c]         winograd_input
    v, u[a*a, O', I, c] ->  t[a*a, O', R, T/R, c]         winograd_product
    t                   ->  y[N, O', H, W, c]             winograd_output, and its epilogue

``u = G g GT`` is made at compile time, in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
from tvm import tirx

#: Taps of the kernels in each direction.
TAPS = 3

Matrix = tuple[tuple[Fraction, ...], ...]

#: Finite points by ``m``.  The usual 0, ±1, ±2 of F(4×4) round 4 times as much as these (largest
#: error of fp32 with 512 channels of random numbers: 9e-6 of the scale, not 2e-6), whose powers are
#: exact in binary, too.
POINTS = {
    2: (Fraction(0), Fraction(1), Fraction(-1)),
    4: (Fraction(0), Fraction(3, 4), Fraction(-3, 4), Fraction(3, 2), Fraction(-3, 2)),
}


@dataclass(frozen=True)
class Matrices:
    """The exact matrices of F(m, 3), as in the module's docstring."""

    at: Matrix
    g: Matrix
    bt: Matrix


@cache
def matrices(outputs: int) -> Matrices:
    """Those of ``outputs`` at a time, from :data:`POINTS`."""
    points = POINTS[outputs]
    at = [(*(p**i for p in points), Fraction(i == outputs - 1)) for i in range(outputs)]
    g, bt = [], []
    for index, point in enumerate(points):
        others = points[:index] + points[index + 1 :]
        scale = _product(point - other for other in others)
        # The point 0 of F(2×2) would be all negative.
        sign = -1 if scale < 0 and not point else 1
        g.append(tuple(sign * point**k / scale for k in range(TAPS)))
        bt.append(tuple(sign * c for c in (*_with_roots(others), Fraction(0))))
    g.append((*(Fraction(0),) * (TAPS - 1), Fraction(1)))
    bt.append(tuple(_with_roots(points)))
    return Matrices(tuple(at), tuple(g), tuple(bt))


def _product(factors: Any) -> Fraction:
    result = Fraction(1)
    for factor in factors:
        result *= factor
    return result


def _with_roots(roots: Sequence[Fraction]) -> list[Fraction]:
    """Coefficients, lowest first, of the polynomial with these roots and leading 1."""
    result = [Fraction(1)]
    for root in roots:
        shifted, scaled = [Fraction(0), *result], [*(root * c for c in result), Fraction(0)]
        result = [a - b for a, b in zip(shifted, scaled, strict=True)]
    return result


def transformed_weight(weight: np.ndarray, outputs: int) -> np.ndarray:
    """``OIHW`` to ``[a, a, O, I]`` in its own precision, computed in float64."""
    g = np.array([[float(c) for c in row] for row in matrices(outputs).g])
    u = np.einsum("pk,oikl,ql->pqoi", g, weight.astype(np.float64), g, optimize=True)
    return u.astype(weight.dtype)


# -- sums as TE ---------------------------------------------------------------------------


def row_of(matrix: Matrix, row: Any, value: Callable[[int], Any], terms: Callable[..., Any]) -> Any:
    """The product of a row of ``matrix`` with values, for a row that unrolling makes a number.

    Not with ``Select``, whose condition would become a vector of booleans, which OpenCL C
    has another idea of.
    """
    rows = [terms(coefficients, value) for coefficients in matrix]
    result = rows[-1]
    for index in reversed(range(len(rows) - 1)):
        result = tirx.if_then_else(row == index, rows[index], result)
    return result


def by_parity(coefficients: Sequence[Fraction], value: Callable[[int], Any]) -> Any:
    """The sum of even terms and that of odd ones: rows of opposite points share both.

    The odd sum is that of the positive point; BT has such rows.
    """
    even = _sum([(c, value(k)) for k, c in enumerate(coefficients) if c and not k % 2])
    odd = [(c, value(k)) for k, c in enumerate(coefficients) if c and k % 2]
    if not odd:
        return even
    negative = odd[-1][0] < 0
    odd_sum = _sum([(-c if negative else c, v) for c, v in odd])
    if even is None:
        return -odd_sum if negative else odd_sum
    return even - odd_sum if negative else even + odd_sum


def by_pairs(coefficients: Sequence[Fraction], value: Callable[[int], Any]) -> Any:
    """Opposite points next to each other are added or subtracted first; AT has such rows."""
    terms = [(coefficients[0], value(0))]
    for k in range(1, len(coefficients) - 1, 2):
        positive, negative = coefficients[k], coefficients[k + 1]
        both = value(k) + value(k + 1) if positive == negative else value(k) - value(k + 1)
        terms.append((positive, both))
    terms.append((coefficients[-1], value(len(coefficients) - 1)))
    return _sum([(c, v) for c, v in terms if c])


def _sum(terms: Sequence[tuple[Fraction, Any]]) -> Any:
    """The sum of products, those with positive factors first: none has to be negated."""
    result = None
    for factor, value in sorted(terms, key=lambda term: term[0] < 0):
        product = value if abs(factor) == 1 else value * float(abs(factor))
        if result is None:
            result = product if factor > 0 else -product
        else:
            result = result + product if factor > 0 else result - product
    return result


def tiles(extent: int, outputs: int) -> int:
    """Tiles of ``outputs`` that cover an extent."""
    return -(-extent // outputs)
