"""Products of matrices: of two square ones, and of a batch of samples by the same weights.

    a[N, N]        b[N, N]        product[i, j] = sum_k a[i, k] * b[k, j]
    x[N, 64, 64]   w[64, 64]      relu[n, i, j] = max(sum_k x[n, i, k] * w[k, j], 0)

The first goes from three scalar loops to packed panels.  A sample of the second fits the
first-level cache; threads share the batch.  :mod:`.product` has the schedules.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
from tvm import te, tirx

from .product import GroupTile, Tile, product
from .steps import LONE_ITEMS, Lab, Step, as_written, normal_operands

#: Rows and columns of a sample, and of its weights.
SIDE = 64


def compute(size: int) -> list[te.Tensor]:
    """Return the square matrices and their product."""
    a, b = (te.placeholder((size, size), "float32", name=name) for name in "ab")
    return [a, b, product(a, b)]


def reference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the product, summed in double precision."""
    result: np.ndarray = a.astype(np.float64) @ b.astype(np.float64)
    return result.astype(np.float32)


def baseline(a: np.ndarray, b: np.ndarray) -> Callable[[], object]:
    """Return a call of NumPy's product, by its BLAS, into allocated memory."""
    return partial(np.matmul, a, b, out=np.empty((len(a), b.shape[1]), a.dtype))


def compute_batch(size: int) -> list[te.Tensor]:
    """Return the samples, their weights and the results."""
    x = te.placeholder((size, SIDE, SIDE), "float32", name="x")
    w = te.placeholder((SIDE, SIDE), "float32", name="w")
    full, zero = product(x, w), tirx.const(0, "float32")
    return [x, w, te.compute(full.shape, lambda *i: tirx.max(full(*i), zero), name="relu")]


def product_and_maximum(a: np.ndarray, b: np.ndarray) -> Callable[[], object]:
    """Return a call of NumPy's product, by its BLAS, and its maximum with zero."""
    result = np.empty((len(a), b.shape[1]), np.float32)

    def call() -> None:
        np.maximum(np.matmul(a, b, out=result), np.float32(0), out=result)

    return call


_TILE = Tile(rows=6, vectors=4, block=20)
ON_CPU = (
    Step("naive", "Three loops over single numbers, as the definition reads.", "", as_written),
    Step(
        "vectorised",
        "A vector of columns at a time, summed in a register.",
        "One product at a time, and the right matrix read down its columns: where they are long, 4 "
        "of the 64 bytes of each line are used before it leaves the first cache.",
        Tile(),
    ),
    Step(
        "blocked",
        "The sums of 6 rows by 4 vectors stay in registers; up to 20 such tiles below each other "
        "go by up to 256 rows of 4 vectors, which stay in the cache, before the next ones.",
        "Each vector that is read is used once, each addition waits for the one before it, and "
        "the whole right matrix goes through the caches for every row.",
        _TILE,
    ),
    Step(
        "parallel",
        "Tiles are spread over all cores.",
        "One core works.",
        replace(_TILE, parallel=True),
    ),
    Step(
        "packed",
        "The right matrix is first copied into panels of 4 vectors, which are read in order.",
        "The rows of a panel lie a whole row of the matrix apart: long ones each on another page "
        "and, where rows are a power of two of bytes, in the same few sets of the cache.",
        replace(_TILE, parallel=True, packed=True),
    ),
)
_ONE_BY_ONE = Step(
    "naive", "An item computes one result, in a work-group of its own.", "", GroupTile()
)
ON_GPU = (
    _ONE_BY_ONE,
    Step(
        "vectorised",
        "An item computes four neighbours of a row.",
        "Each number of the left matrix is read for every single product, and numbers of the "
        "right one come one at a time.",
        GroupTile(lanes=4),
    ),
    Step(
        "blocked",
        "The sums of 4 rows by 4 columns stay in an item's registers.",
        "Each vector that is read is used once.",
        GroupTile(rows=4, lanes=4),
    ),
    Step(
        "parallel",
        "64 items are a work-group: neighbours read neighbouring vectors.",
        LONE_ITEMS,
        GroupTile(rows=4, lanes=4, group=8),
    ),
    Step(
        "packed",
        "A group copies tiles of both matrices to local memory and multiplies them from there.",
        "Each number is read from memory by the eight items of a row or column of the group.",
        GroupTile(rows=4, lanes=4, group=8, depth=16),
    ),
)
BATCH_ON_CPU = (
    Step("naive", "Loops over single numbers, sample after sample.", "", as_written),
    Step(
        "vectorised",
        "The sums of 4 rows by 4 vectors stay in registers; they are cut as they are stored.",
        "One product at a time, and all sums are stored before they are cut.",
        Tile(4, 4, block=1),
    ),
    Step(
        "parallel",
        "Samples are spread over all cores.",
        "One core works.",
        Tile(4, 4, block=1, parallel=True),
    ),
)
BATCH_ON_GPU = (
    _ONE_BY_ONE,
    Step(
        "vectorised",
        "The sums of 4 rows by 4 columns stay in an item's registers.",
        "Each number that is read serves one product.",
        GroupTile(rows=4, lanes=4),
    ),
    Step(
        "parallel",
        "64 items are a work-group; a sample has four groups.",
        LONE_ITEMS,
        GroupTile(rows=4, lanes=4, group=8),
    ),
)

MATMUL = Lab(
    name="matmul",
    summary="Product of two square matrices of fp32 numbers.",
    counts="rows and columns",
    size=1024,
    compute=compute,
    operands=normal_operands(compute),
    reference=reference,
    baseline=baseline,
    operations=lambda size: 2 * size**3,
    on_cpu=ON_CPU,
    on_gpu=ON_GPU,
)
BATCH = Lab(
    name="batch",
    summary="A batch of samples by the same weights, cut at zero.",
    counts="samples of 64 by 64 numbers",
    size=1024,
    compute=compute_batch,
    operands=normal_operands(compute_batch),
    reference=lambda x, w: np.maximum(reference(x, w), 0),
    # NumPy multiplies all rows in one product.
    baseline=lambda x, w: product_and_maximum(x.reshape(-1, SIDE), w),
    operations=lambda size: size * (2 * SIDE**3 + SIDE**2),
    on_cpu=BATCH_ON_CPU,
    on_gpu=BATCH_ON_GPU,
)
