"""Compute GIoU, its loss and their derivatives in NumPy's float64, to test operators against."""

from __future__ import annotations

import numpy as np

Array = np.ndarray


def giou(pred: Array, target: Array, epsilon: float = 1e-5) -> Array:
    """Return GIoU of pairs of boxes ``[..., 4]``; a NaN in a pair makes it NaN."""
    return _terms(pred, target, epsilon)[0]


def giou_gradients(
    pred: Array, target: Array, grad: Array, epsilon: float = 1e-5
) -> tuple[Array, Array]:
    """Return the derivatives by ``pred`` and ``target``, weighted by ``grad``.

    At a tie of two corners each has half; a side of exactly 0 counts as not clamped.
    """
    _, (inter, union, around), (pred_side, target_side, inter_side, around_side) = _terms(
        pred, target, epsilon
    )
    u, c = union + epsilon, around + epsilon
    by_union = 1 / c - inter / u**2
    by_inter = 1 / u - by_union
    by_around = -u / c**2

    def by_sides(by: Array, side: Array) -> Array:
        other = np.maximum(side[..., ::-1], 0)
        return by[..., None] * np.where(side < 0, 0, other)

    own = by_sides(by_union, pred_side), by_sides(by_union, target_side)
    shared, outer = by_sides(by_inter, inter_side), by_sides(by_around, around_side)
    # Shares of the prediction's corners in those of the intersection.
    low = np.heaviside(pred[..., :2] - target[..., :2], 0.5)
    high = np.heaviside(target[..., 2:] - pred[..., 2:], 0.5)
    results = []
    for side, (a, b) in zip(own, ((low, high), (1 - low, 1 - high)), strict=True):
        first = -(side + a * shared + (1 - a) * outer)
        second = side + b * shared + (1 - b) * outer
        results.append(np.concatenate([first, second], -1) * grad[..., None])
    return results[0], results[1]


def valid_boxes(
    shape: tuple[int, int],
    target: Array,
    count: Array | None = None,
    mask: Array | None = None,
    offsets: Array | None = None,
) -> Array:
    """Return which boxes ``[B, M]`` are valid, by at most one of ``count``, ``mask``, ``offsets``.

    Without any, boxes are valid whose target has ``y2 > 0``.  Counts and offsets are clamped into
    range.
    """
    columns = np.arange(shape[1])
    if mask is not None:
        return np.asarray(mask) != 0
    if offsets is not None:
        begin, end = bounds(offsets, len(target))
        return columns < (end - begin)[:, None]
    if count is not None:
        return columns < np.asarray(count, np.int64)[:, None]
    return target[..., 3] > 0


def bounds(offsets: Array, packed: int) -> tuple[Array, Array]:
    """Return the first and end rows of the samples in a packed tensor, clamped into it."""
    clamped = np.clip(np.asarray(offsets, np.int64), 0, packed)
    return clamped[:-1], clamped[1:]


def padded(target: Array, offsets: Array, boxes: int) -> Array:
    """Return a packed target as ``[B, M, 4]``, NaN where a sample has fewer boxes."""
    begin, end = bounds(offsets, len(target))
    result = np.full((len(begin), boxes, 4), np.nan)
    for sample, (first, last) in enumerate(zip(begin, end, strict=True)):
        mine = target[first : min(last, first + boxes)]
        result[sample, : len(mine)] = mine
    return result


def _terms(
    pred: Array, target: Array, epsilon: float
) -> tuple[Array, tuple[Array, Array, Array], tuple[Array, Array, Array, Array]]:
    """Return GIoU; the areas of intersection, union and enclosing box; sides ``[..., 2]``."""
    # Differences of small integers wrap around.
    pred, target = (np.asarray(box, np.float64) for box in (pred, target))
    first, second = (pred[..., :2], target[..., :2]), (pred[..., 2:], target[..., 2:])
    sides = (
        second[0] - first[0],
        second[1] - first[1],
        np.minimum(*second) - np.maximum(*first),
        np.maximum(*second) - np.minimum(*first),
    )
    # NumPy's maximum and minimum keep NaNs.
    own, other, inter, around = (np.prod(np.maximum(side, 0), -1) for side in sides)
    union = own + other - inter
    giou = inter / (union + epsilon) - (around - union) / (around + epsilon)
    return giou, (inter, union, around), sides
