"""Product and ReLU of 8-bit numbers, as quantized networks compute them.

A real number ``r`` is stored as ``q = clip(round(r / scale) + zero, 0, 255)`` and represents
``(q - zero) * scale``.  Words hold four neighbours along the depth, whose products one instruction
sums in int32 (:mod:`tvmflow.codegen.dot_products`); the left zero point is moved out of the
sums, for which the sums of the right matrix's columns are passed, too::

    x[M, K / 4]: four uint8   w[K / 4, N]: four int8   columns[N] = sum_k w[k, j]: int32
    scale[1] = scale_x * scale_w / scale_y: fp32       zero[2]: int32, of x and y
    real[i, j] = (sum_k x[i, k] * w[k, j] - zero[0] * columns[j]) * scale[0]
    y[i, j] = min(round(clip(real[i, j], 0, 255)) + zero[1], 255): uint8

Clipping at 0, before the zero point of ``y`` is added, is the ReLU; values over 255 saturate.
Scales and zero points are arguments: one function serves layers with any values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import sqrt

import numpy as np
from tvm import te, tirx

from ..integers import WORD, product_of_words
from . import formulas, matmul
from .formulas import ROW
from .product import product


@dataclass(frozen=True)
class Scale:
    """Scale and zero point of real numbers that are stored in 8 bits."""

    scale: float
    zero: int
    dtype: str = "uint8"

    def quantize(self, real: np.ndarray) -> np.ndarray:
        """Quantize real numbers to 8 bits."""
        limits = np.iinfo(self.dtype)
        steps = np.rint(real / self.scale) + self.zero
        return np.clip(steps, limits.min, limits.max).astype(self.dtype)

    def real(self, quantized: np.ndarray) -> np.ndarray:
        """Return the real numbers that 8-bit values represent."""
        return (quantized.astype(np.float32) - np.float32(self.zero)) * np.float32(self.scale)


#: Scales of numbers from -1 to 1.5, and from -1 to 1.
X = Scale(2.5 / 255, 102)
W = Scale(1 / 127, 0, "int8")
#: Scales of the ReLU's argument and result, which are other numbers than the product's.
BEFORE, AFTER = Scale(6 / 255, 119), Scale(2.7 / 255, 10)


def y_scale(size: int) -> Scale:
    """Return the scale of the product's result, of which about one in a thousand exceeds 255.

    Sums are normally distributed: 255 is three times their deviation.
    """
    deviation = sqrt(size * (2.5**2 / 12 + 0.25**2) * (2.0**2 / 12))
    return Scale(3 * deviation / 255, 0)


def arguments(before: float, zero: int, after: Scale) -> tuple[np.ndarray, np.ndarray]:
    """Return the arguments ``scale`` and ``zero``, from those of a lab's input and result."""
    return np.array([before / after.scale], np.float32), np.array([zero, after.zero], np.int32)


def placeholders() -> tuple[te.Tensor, te.Tensor]:
    """Return placeholders of the arguments ``scale`` and ``zero``."""
    scale = te.placeholder((1,), "float32", name="scale")
    return scale, te.placeholder((2,), "int32", name="zero")


# -- the product --------------------------------------------------------------------------


def compute(size: int) -> list[te.Tensor]:
    """Return the arguments and the result."""
    depth = -(-size // WORD)
    x = te.placeholder((size, depth), "int32", name="x")
    w = te.placeholder((depth, size), "int32", name="w")
    columns = te.placeholder((size,), "int32", name="columns")
    scale, zero = placeholders()
    sums = product(x, w, product_of_words)

    def requantized(i: tirx.Var, j: tirx.Var) -> tirx.Expr:
        real = tirx.Cast("float32", sums[i, j] - zero[0] * columns[j]) * scale[0]
        return to_uint8(real, zero[1])

    return [x, w, columns, scale, zero, te.compute((size, size), requantized, name="y")]


def to_uint8(value: tirx.Expr, zero: tirx.Expr) -> tirx.Expr:
    """Return the ReLU of a number, rounded to even, plus the zero point, and saturated."""
    # Clipping by constants before rounding lets rounding be an addition (codegen/rounding.py).
    low, high = (tirx.const(limit, "float32") for limit in (0, 255))
    rounded = tirx.Cast("int32", tirx.nearbyint(tirx.max(tirx.min(value, high), low)))
    return tirx.Cast("uint8", tirx.min(rounded + zero, tirx.const(255, "int32")))


def real_operands(size: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return random real matrices, which are then quantized."""
    return rng.uniform(-1, 1.5, (size, size)), rng.uniform(-1, 1, (size, size))


def operands(size: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Return the matrices in words, the sums of columns, the scale and the zero points."""
    x, w = real_operands(size, rng)
    missing = -size % WORD
    left = np.pad(X.quantize(x), ((0, 0), (0, missing)))
    right = np.pad(W.quantize(w), ((0, missing), (0, 0)))
    words = np.ascontiguousarray(right.reshape(-1, WORD, size).transpose(0, 2, 1))
    return [
        left.view("<i4"),
        words.view("<i4")[..., 0],
        right.sum(axis=0, dtype=np.int32),
        *arguments(X.scale * W.scale, X.zero, y_scale(size)),
    ]


def integers(x: np.ndarray, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Unpack words into the matrices of 8-bit numbers, as real numbers."""
    columns = np.ascontiguousarray(w)[..., None].view(np.int8).transpose(0, 2, 1)
    return x.view(np.uint8).astype(np.float64), columns.reshape(-1, w.shape[1]).astype(np.float64)


def reference(
    x: np.ndarray, w: np.ndarray, columns: np.ndarray, scale: np.ndarray, zero: np.ndarray
) -> np.ndarray:
    """Return the exact result: fp64 represents all sums of products of integers."""
    left, right = integers(x, w)
    sums = (left @ right).astype(np.int32) - zero[0] * columns
    return requantize(sums, scale, zero[1])


def requantize(numbers: np.ndarray, scale: np.ndarray, zero: np.int32) -> np.ndarray:
    """Return the ReLU of integers, converted to another scale and zero point, in 8 bits."""
    rounded = np.rint(np.clip(numbers.astype(np.float32) * scale, 0, 255)).astype(np.int32)
    return np.minimum(rounded + zero, 255).astype(np.uint8)


def baseline(x: np.ndarray, w: np.ndarray, *_others: np.ndarray) -> Callable[[], object]:
    """Return a call of NumPy's fp32 product and maximum, as it has no 8-bit products."""
    left, right = (array.astype(np.float32) for array in integers(x, w))
    return matmul.product_and_maximum(left, right)


# -- the ReLU -----------------------------------------------------------------------------


def compute_relu(size: int) -> list[te.Tensor]:
    """Return the arguments and the result."""
    x = te.placeholder((size, ROW), "uint8", name="x")
    scale, zero = placeholders()

    def relu(i: tirx.Var, j: tirx.Var) -> tirx.Expr:
        number = tirx.Cast("int32", x[i, j]) - zero[0]
        return to_uint8(tirx.Cast("float32", number) * scale[0], zero[1])

    return [x, scale, zero, te.compute((size, ROW), relu, name="relu")]


def relu_operands(size: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Return random numbers of any 8 bits, of which those above 2.6 saturate."""
    numbers = rng.integers(0, 256, (size, ROW)).astype(np.uint8)
    return [numbers, *arguments(BEFORE.scale, BEFORE.zero, AFTER)]


def relu_reference(x: np.ndarray, scale: np.ndarray, zero: np.ndarray) -> np.ndarray:
    """Return the result of NumPy."""
    return requantize(x.astype(np.int32) - zero[0], scale, zero[1])


MATMUL = replace(
    matmul.MATMUL,
    name="matmul_int8",
    summary="Product and ReLU of 8-bit numbers, summed in int32 and requantized.",
    compute=compute,
    operands=operands,
    reference=reference,
    baseline=baseline,
    arithmetic="int8",
    copies=25,
)
RELU = replace(
    formulas.LABS["relu"],
    name="relu_int8",
    summary="ReLU of 8-bit numbers between two scales and zero points.",
    compute=compute_relu,
    operands=relu_operands,
    reference=relu_reference,
    # The baseline takes as many fp32 numbers.
    baseline=lambda x, *_: formulas.LABS["relu"].baseline(BEFORE.real(x)),
    copies=32,
)
