"""What the work-items of a wave do together at one instruction.

A wave is as many neighbours of a work-group as run one instruction together: they are numbered
along x, then y, then z.  The last one of a group may have fewer.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .evaluate import Array, digits, evaluate, evaluate_all
from .lowered import Kernel
from .sites import Place

#: Elements that are looked at, at most; of more waves, some are drawn.
LIMIT = 1 << 17


@dataclass(frozen=True)
class Waves:
    """Waves at one place in the code: rows of work-items."""

    #: Values of variables, one for each work-item of each wave in turn.
    values: dict[Any, Array]
    #: Waves x work-items: whether one is there and its conditions hold.
    active: NDArray[np.bool_]
    #: How many waves of the kernel's each row stands for.
    weight: float
    #: Whether these are all that the kernel has, up to those that are equal to one of them.
    exact: bool

    def compute(self, expr: Any, lanes: int = 1) -> Array:
        """An expression's value: waves x work-items x lanes."""
        value = np.asarray(evaluate(expr, self.values), np.int64)
        whole = np.broadcast_to(value if lanes > 1 else value[..., None], (self.active.size, lanes))
        return whole.reshape(*self.active.shape, lanes)


def waves_at(
    kernel: Kernel, place: Place, wave: int, used: frozenset[Any], lanes: int = 1
) -> Waves:
    """Waves that reach a place.

    Parameters
    ----------
    used
        Variables that are of interest.
    wave
        Work-items that run together.
    lanes
        Elements that each of them accesses.

    Raises
    ------
    UnknownError
        If conditions depend on what is in memory.
    """
    # Sites that unrolling made of one have the same waves; a kernel keeps its places.
    key = id(place), wave, frozenset(map(hash, used)), lanes
    if kernel.memo.get("waves", (None,))[0] != key:
        # Only the last ones are kept, as they may be large.
        kernel.memo["waves"] = key, _waves_at(kernel, place, wave, used, lanes)
    found: Waves = kernel.memo["waves"][1]
    return found


def _waves_at(kernel: Kernel, place: Place, wave: int, used: frozenset[Any], lanes: int) -> Waves:
    items = {tag: axis for tag, axis in kernel.launch.items() if tag.startswith("threadIdx")}
    blocks = [axis for tag, axis in kernel.launch.items() if not tag.startswith("threadIdx")]
    needed = used | place.variables
    axes = [axis for axis in (*blocks, *place.loops) if axis[0] in needed]
    others = prod(extent for var, extent in (*blocks, *place.loops) if var not in needed)
    size = kernel.group_size
    # Of a group that is smaller than a wave, no more lanes than it has are looked at.
    wave = min(wave, 1 << (size - 1).bit_length())
    padded = ceil(size / wave) * wave
    points = prod(extent for _, extent in axes)
    kept = max(1, LIMIT // (padded * lanes))
    if points > kept:
        numbers = np.random.default_rng(0).integers(0, points, kept)
    else:
        numbers = np.arange(points)
    item = np.tile(np.arange(padded), len(numbers))
    values = digits(np.repeat(numbers, padded), axes)
    order = [items[f"threadIdx.{a}"] for a in "zyx" if f"threadIdx.{a}" in items]
    values |= digits(np.minimum(item, size - 1), order)
    active = (item < size) & evaluate_all(place.conditions, values, item.size)
    return Waves(
        values,
        active.reshape(-1, wave),
        others * points / len(numbers),
        points <= kept and not place.unknown,
    )


def distinct(rows: Array, active: NDArray[np.bool_]) -> Array:
    """How many different numbers from 0 each row has, among the active ones."""
    ordered = np.sort(np.where(active, rows, -1), axis=1)
    first = np.diff(ordered, axis=1, prepend=-1) != 0
    return first.sum(axis=1)
