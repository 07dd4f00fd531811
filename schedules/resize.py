"""Resizes along rows, columns or both, as weighted sums of a few neighbours in every mode.

Places and weights are constants, computed at compile time (two taps for bilinear, four for cubic
modes)::

    x[N, C', H, W, c]  (or plain x[N, C, H, W])     rows, row_weights[H', P]  (columns alike)
    y[n, k, i, j, c] = sum_{p, q} x[n, k, rows[i, p], columns[j, q], c]
                                  * column_weights[j, q] * row_weights[i, p]

A work-item computes neighbours of one row: values that depend on the row are read once for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from math import prod

import numpy as np
from tvm import s_tir, te, tirx

from ..devices.target import Device
from .common import FAMILY, Workload, is_injective
from .data_parallel import CPU_ELEMENTS, CPU_GROUPS
from .family import GROUP_FITS, Declined, Value, knob
from .sizes import group_sizes, tile_choices, tile_of

NAME = "resize"
ORDER = 600


def linear_taps(x: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return places and weights of the two elements around each position, within an axis.

    As in ONNX Runtime, these are the element at or below the position and the next one, even if its
    weight is zero, so that NaN propagates.  The last element has no next one: it is taken twice,
    with half the weight each.
    """
    x = np.clip(x.astype(np.float64), 0, size - 1)
    low = np.floor(x).astype(np.int64)
    high = np.minimum(low + 1, size - 1)
    above = np.where(low == high, 0.5, x - low)
    return np.stack([low, high], axis=1), np.stack([1 - above, above], axis=1)


def without_zeros(places: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return places and weights by which elements of weight zero are not read.

    Zero times infinity is NaN.  The first element of another weight is read instead, and its
    weight halved for each such read.  This is exact: the parts add up to the same multiple of the
    element, also of an infinite one.
    Shapes are (result, taps); each row has a weight that is not zero.
    """
    places, weights = places.copy(), weights.copy()
    for row_places, row in zip(places, weights, strict=True):
        first = int(np.flatnonzero(row)[0])
        for tap in np.flatnonzero(row == 0):
            row[first] /= 2
            row_places[tap], row[tap] = row_places[first], row[first]
    return places, weights


def relax_positions(size: int, result: int, mode: str) -> np.ndarray:
    """Return real positions in an axis of ``size``, in a coordinate mode of Relax's operator."""
    y = np.arange(result)
    if mode == "half_pixel":
        return (y + 0.5) * (size / result) - 0.5
    return y * (size / result) if mode == "asymmetric" else y * (size - 1) / (result - 1)


def relax_nearest(x: np.ndarray, rounding: str) -> np.ndarray:
    """Round as Relax's operator does, which shifts positions a little for two of the modes."""
    if rounding == "round_prefer_floor":
        return np.ceil(x - 0.5)
    if rounding == "round_prefer_ceil":
        return np.floor(x + 0.5)
    return np.floor(x + 1e-5) if rounding == "floor" else np.ceil(x - 1e-5)


def compute(
    x: te.Tensor, tables: Sequence[te.Tensor], axes: Sequence[int], weighted: bool
) -> te.Tensor:
    """Return the resize as TE; ``tables`` are those of each of ``axes`` (2, 3) in turn.

    They are places and weights, or places alone if the only weight is 1.
    """
    step = 1 + weighted
    by_axis = {axis: tables[step * i : step * (i + 1)] for i, axis in enumerate(axes)}
    shape = [by_axis[a][0].shape[0] if a in by_axis else d for a, d in enumerate(x.shape)]

    def along(axis: int, index: list[tirx.Expr], place: list[tirx.Expr]) -> tirx.Expr:
        """Sum over the taps of an axis and of the axes after it."""
        if axis > 3:
            return x(*place)
        if axis not in by_axis:
            return along(axis + 1, index, place)
        places, *weights = by_axis[axis]
        total = None
        for tap in range(int(places.shape[1])):
            source = list(place)
            # Fused functions use int64 indices.
            source[axis] = tirx.Cast("int64", places[index[axis], tap])
            term = along(axis + 1, index, source)
            for weight in weights:
                term = term * weight[index[axis], tap]
            total = term if total is None else total + term
        return total

    return te.compute(
        shape, lambda *i: along(2, list(i), list(i)), name="resize", attrs={FAMILY: NAME}
    )


@dataclass(frozen=True)
class Shape:
    """Rows of the result in all pictures, their width, and lanes (1 for plain tensors)."""

    rows: int
    width: int
    lanes: int
    _: KW_ONLY
    #: Whether whole texels are written.
    texels: bool


@dataclass(frozen=True)
class Knobs:
    """Knobs of the tile of a work-item."""

    tile_w: int = knob("Neighbours of a row, or vectors of channels, that a work-item computes.")
    group_size: int = knob("Most work-items of a work-group.")


CONSTRAINTS = {
    "tile_w is at most the width.": lambda k, s, d: k.tile_w <= s.width,
    **GROUP_FITS,
}

#: Neighbours of a work-item on a GPU: they share a row's weights and some texels (an assumption).
GPU_TILE = 2


def heuristic(shape: Shape, device: Device) -> Knobs:
    """Return a row on CPUs, or a part of it that leaves work for all cores; a pair on GPUs."""
    if not device.is_cpu:
        return Knobs(tile_of(shape.width, GPU_TILE), device.group_size)
    most = min(CPU_ELEMENTS // shape.lanes, -(-shape.rows * shape.width // CPU_GROUPS))
    return Knobs(tile_of(shape.width, max(1, most)), 1)


def space(shape: Shape, device: Device) -> dict[str, tuple[Value, ...]]:
    """Return tiles of all widths."""
    widest = shape.width if device.is_cpu else 8
    return {"tile_w": tile_choices(shape.width, widest), "group_size": group_sizes(device)}


def match(workload: Workload) -> Shape:
    """Return the shape of a resize with elementwise functions around it."""
    anchor = workload.anchor(NAME)
    extents = workload.extents(anchor)
    after = workload.after(anchor)
    if any(workload.extents(b) != extents or not is_injective(workload.sch, b) for b in after):
        raise Declined("the blocks after it are not elementwise")
    output = workload.blocks[-1]
    lanes = extents[4] if len(extents) == 5 else 1
    texels = workload.writes_texture(output)
    return Shape(prod(extents[:3]), extents[3], lanes, texels=texels)


def apply(workload: Workload, knobs: Knobs) -> s_tir.Schedule:
    """Tile and vectorise by ``knobs``."""
    sch = workload.sch
    *others, output = workload.blocks
    workload.inline(*others)
    n, k, h, w, *lane = sch.get_loops(output)
    w, column = sch.split(w, [None, knobs.tile_w])
    workload.bind_outer([n, k, h, w], knobs.group_size)
    if not workload.is_cpu:
        sch.unroll(column)
    if lane and workload.lanes_of(output):
        sch.vectorize(lane[0])
    return sch
