"""Products of two square matrices, from three scalar loops to packed panels.

    a[N, N]   b[N, N]      product[i, j] = sum_k a[i, k] * b[k, j]

:mod:`.product` has the schedules, which serve other labs, too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
from tvm import te

from .product import GroupTile, Tile, product, tiled, tiled_in_groups
from .steps import LONE_ITEMS, Lab, Step, as_written


def compute(size: int) -> list[te.Tensor]:
    """The arguments and the result."""
    a, b = (te.placeholder((size, size), "float32", name=name) for name in "ab")
    return [a, b, product(a, b)]


def operands(size: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Two matrices of normally distributed numbers."""
    return [rng.standard_normal((size, size), np.float32) for _ in range(2)]


def reference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The product, summed in double precision."""
    result: np.ndarray = a.astype(np.float64) @ b.astype(np.float64)
    return result.astype(np.float32)


def baseline(a: np.ndarray, b: np.ndarray) -> Callable[[], object]:
    """NumPy's product, by its BLAS, into memory that is there."""
    return partial(np.matmul, a, b, out=np.empty((len(a), b.shape[1]), a.dtype))


_TILE = Tile(rows=6, vectors=4, block=20)
ON_CPU = (
    Step("naive", "Three loops over single numbers, as the definition reads.", "", as_written),
    Step(
        "vectorised",
        "A vector of columns at a time, summed in a register.",
        "One product at a time, and the right matrix read down its columns: where they are long, 4 "
        "of the 64 bytes of each line are used before it leaves the first cache.",
        partial(tiled, tile=Tile()),
    ),
    Step(
        "blocked",
        "The sums of 6 rows by 4 vectors stay in registers; up to 20 such tiles below each other "
        "go by up to 256 rows of 4 vectors, which stay in the cache, before the next ones.",
        "Each vector that is read is used once, each addition waits for the one before it, and "
        "the whole right matrix goes through the caches for every row.",
        partial(tiled, tile=_TILE),
    ),
    Step(
        "parallel",
        "Tiles are spread over all cores.",
        "One core works.",
        partial(tiled, tile=replace(_TILE, parallel=True)),
    ),
    Step(
        "packed",
        "The right matrix is first copied into panels of 4 vectors, which are read in order.",
        "The rows of a panel lie a whole row of the matrix apart: long ones each on another page "
        "and, where rows are a power of two of bytes, in the same few sets of the cache.",
        partial(tiled, tile=replace(_TILE, parallel=True, packed=True)),
    ),
)
ON_GPU = (
    Step(
        "naive",
        "An item computes one result, in a work-group of its own.",
        "",
        partial(tiled_in_groups, tile=GroupTile()),
    ),
    Step(
        "vectorised",
        "An item computes four neighbours of a row.",
        "Each number of the left matrix is read for every single product, and numbers of the "
        "right one come one at a time.",
        partial(tiled_in_groups, tile=GroupTile(lanes=4)),
    ),
    Step(
        "blocked",
        "The sums of 4 rows by 4 columns stay in an item's registers.",
        "Each vector that is read is used once.",
        partial(tiled_in_groups, tile=GroupTile(rows=4, lanes=4)),
    ),
    Step(
        "parallel",
        "64 items are a work-group: neighbours read neighbouring vectors.",
        LONE_ITEMS,
        partial(tiled_in_groups, tile=GroupTile(rows=4, lanes=4, group=8)),
    ),
    Step(
        "packed",
        "A group copies tiles of both matrices to local memory and multiplies them from there.",
        "Each number is read from memory by the eight items of a row or column of the group.",
        partial(tiled_in_groups, tile=GroupTile(rows=4, lanes=4, group=8, depth=16)),
    ),
)


LAB = Lab(
    name="matmul",
    summary="Product of two square matrices of fp32 numbers.",
    counts="rows and columns",
    size=1024,
    compute=compute,
    operands=operands,
    reference=reference,
    baseline=baseline,
    operations=lambda size: 2 * size**3,
    on_cpu=ON_CPU,
    on_gpu=ON_GPU,
)
