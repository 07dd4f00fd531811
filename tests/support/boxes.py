"""Random boxes, usual and degenerate ones, and batches of which only some boxes count."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tvmflow.ir.operators import OPERATORS
from tvmflow.ir.tensors import dtype_from_name

FORMS = ("none", "count", "mask", "bytes", "offsets")


def corners(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Return boxes some of whose corners are equal, and some of which are empty or inverted."""
    return rng.integers(-2, 6, (*shape, 4)) / 4


def sized(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Return boxes of some extent."""
    first = rng.uniform(-1, 1, (*shape, 2))
    return np.concatenate([first, first + rng.uniform(0.2, 1.5, (*shape, 2))], -1)


@dataclass(frozen=True)
class Batch:
    """Arguments of the loss; boxes that do not count are NaN or infinite."""

    pred: np.ndarray
    target: np.ndarray
    count: np.ndarray | None = None
    mask: np.ndarray | None = None
    offsets: np.ndarray | None = None

    def arrays(self) -> list[np.ndarray | None]:
        """Return the arguments in the operator's order."""
        return [self.pred, self.target, self.count, self.mask, self.offsets]

    def of_one_sample(self) -> Batch:
        """Return the arguments without the first dimension."""
        assert len(self.pred) == 1
        target = self.target if self.offsets is not None else self.target[0]
        mask = None if self.mask is None else self.mask[0]
        return replace(self, pred=self.pred[0], target=target, mask=mask)

    def gradient_arrays(self, grad: float) -> list[np.ndarray | None]:
        """Return the arguments of the loss's gradient."""
        loss = OPERATORS["GIoULoss"]
        with np.errstate(all="ignore"):
            _, valid = loss.reference(self.arrays(), loss.complete({}))
        return [*self.arrays(), np.asarray(valid, np.int32), np.asarray(grad, self.pred.dtype)]


def batch(
    rng: np.random.Generator,
    shape: tuple[int, int],
    form: str,
    dtype: str = "float32",
    integers: str = "int32",
    boxes=corners,
) -> Batch:
    """Return a random batch ``[B, M]`` in one of `FORMS`."""
    samples, most = shape
    pred, target = boxes(rng, samples, most), boxes(rng, samples, most)
    counts = rng.integers(0, most + 1, samples)
    if form == "none":
        # They are between others, not after them.
        target[..., 3] = np.where(rng.random(shape) < 0.4, -np.abs(target[..., 3]), target[..., 3])
        valid = target[..., 3].astype(dtype_from_name(dtype)) > 0
    elif form in ("mask", "bytes"):
        valid = rng.random(shape) < 0.6
    else:
        valid = np.arange(most) < counts[:, None]
    pred[~valid] = np.nan
    if form == "none":
        target[~valid, :3] = np.inf
    else:
        target[~valid] = np.inf
    count = mask = offsets = None
    if form == "count":
        count = counts.astype(integers)
    elif form in ("mask", "bytes"):
        # Any number but 0 is true.
        mask = valid if form == "mask" else (valid * rng.integers(1, 256, shape)).astype(np.uint8)
    elif form == "offsets":
        rows = target[valid]
        spare = np.full((2, 4), np.nan)
        target = np.concatenate([spare[:1], rows, spare])
        offsets = (1 + np.concatenate([[0], counts.cumsum()])).astype(integers)
    kind = dtype_from_name(dtype)
    return Batch(pred.astype(kind), target.astype(kind), count, mask, offsets)
