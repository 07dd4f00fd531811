"""A batch of samples: each is multiplied by the same weights and cut at zero.

    x[N, 64, 64]   w[64, 64]      relu[n, i, j] = max(sum_k x[n, i, k] * w[k, j], 0)

A sample is small enough for the first cache; the batch is what there is to share out.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from tvm import te, tirx

from .product import GroupTile, Tile, product, tiled, tiled_in_groups
from .steps import LONE_ITEMS, Lab, Step, as_written

#: Rows and columns of a sample, and of the weights.
SIDE = 64


def compute(size: int) -> list[te.Tensor]:
    """The arguments and the result."""
    x = te.placeholder((size, SIDE, SIDE), "float32", name="x")
    w = te.placeholder((SIDE, SIDE), "float32", name="w")
    full, zero = product(x, w), tirx.const(0, "float32")
    return [x, w, te.compute(full.shape, lambda *i: tirx.max(full(*i), zero), name="relu")]


def operands(size: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Normally distributed samples and weights."""
    shapes = ((size, SIDE, SIDE), (SIDE, SIDE))
    return [rng.standard_normal(shape, np.float32) for shape in shapes]


def reference(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """The results, summed in double precision."""
    full = x.astype(np.float64) @ w.astype(np.float64)
    return np.maximum(full, 0).astype(np.float32)


def baseline(x: np.ndarray, w: np.ndarray) -> Callable[[], object]:
    """NumPy's product of all rows at once, by its BLAS, and its maximum."""
    rows, result = x.reshape(-1, SIDE), np.empty((len(x) * SIDE, SIDE), np.float32)

    def call() -> None:
        np.maximum(np.matmul(rows, w, out=result), np.float32(0), out=result)

    return call


ON_CPU = (
    Step("naive", "Loops over single numbers, sample after sample.", "", as_written),
    Step(
        "vectorised",
        "The sums of 4 rows by 4 vectors stay in registers; they are cut as they are stored.",
        "One product at a time, and all sums are stored before they are cut.",
        partial(tiled, tile=Tile(4, 4, block=1)),
    ),
    Step(
        "parallel",
        "Samples are spread over all cores.",
        "One core works.",
        partial(tiled, tile=Tile(4, 4, block=1, parallel=True)),
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
        "The sums of 4 rows by 4 columns stay in an item's registers.",
        "Each number that is read serves one product.",
        partial(tiled_in_groups, tile=GroupTile(rows=4, lanes=4)),
    ),
    Step(
        "parallel",
        "64 items are a work-group; a sample has four groups.",
        LONE_ITEMS,
        partial(tiled_in_groups, tile=GroupTile(rows=4, lanes=4, group=8)),
    ),
)


LAB = Lab(
    name="batch",
    summary="A batch of samples by the same weights, cut at zero.",
    counts="samples of 64 by 64 numbers",
    size=1024,
    compute=compute,
    operands=operands,
    reference=reference,
    baseline=baseline,
    operations=lambda size: size * (2 * SIDE**3 + SIDE**2),
    on_cpu=ON_CPU,
    on_gpu=ON_GPU,
)
