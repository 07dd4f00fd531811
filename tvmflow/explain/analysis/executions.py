"""Execution counts of kernel code, and the accesses of neighbouring iterations and work-items.

A wave is a set of neighbours in a work-group that run each instruction together.  Items are
numbered along x, then y, then z; the last wave of a group may have fewer items.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil, prod

import numpy as np
from numpy.typing import NDArray
from tvm import tirx

from ...ir.evaluate import Array, Axis, UnknownError, all_hold, evaluate, values_at, variables
from ..grouping import connected
from .accesses import CodeContext, Site
from .deadline import check_time
from .lowered import LoweredKernel

#: Points at which a condition is evaluated; of more points, this many are sampled.
_POINTS = 1 << 22
_CHUNK = 1 << 18
#: Accessed elements that are evaluated; of more waves, some are sampled.
_ELEMENTS = 1 << 17
#: Iterations whose indices are compared, and samples of the other loops' variables.
_STRIDE_STEPS = 16
_STRIDE_DRAWS = 4


def executions(kernel: LoweredKernel, context: CodeContext) -> int:
    """Count how often all work-items together run a piece of code.

    Conditions without a common variable are counted separately, and their counts multiplied.
    Conditions on data are assumed to hold.
    """
    # A kernel keeps its contexts and conditions alive, so their ids are valid keys.
    check_time()
    return kernel.once(("executions", id(context)), lambda: _executions(kernel, context))


def _executions(kernel: LoweredKernel, context: CodeContext) -> int:
    left = dict((*kernel.launch.values(), *context.loops))
    total = 1
    for group in connected([frozenset(variables([one])) for one in context.conditions]):
        conditions = [context.conditions[number] for number in group]
        inside = [(var, left.pop(var)) for var in variables(conditions) if var in left]
        key = "holding", *map(id, conditions)
        total *= kernel.once(key, partial(_holding, conditions, inside))
    return total * prod(left.values())


def instructions(kernel: LoweredKernel, site: Site) -> int:
    """Count the instructions of a site, one for each contiguous run of elements."""
    return executions(kernel, site.context) * site.apart


def times_of(kernel: LoweredKernel, sites: Iterable[Site]) -> int:
    """Return the sum of the executions of some accesses."""
    return sum(executions(kernel, site.context) for site in sites)


def all_instructions(kernel: LoweredKernel) -> int:
    """Count the instructions of all accesses; those to private memory stand for arithmetic."""
    return sum(instructions(kernel, site) for site in kernel.sites)


def wave_instructions(kernel: LoweredKernel, wave: int) -> float:
    """Estimate the instructions of all waves by their accesses."""
    return all_instructions(kernel) / kernel.group_size * ceil(kernel.group_size / wave)


def axes_of(kernel: LoweredKernel, site: Site) -> tuple[Axis, ...]:
    """Return the loops around a site, the outermost first, beginning with the work-items' axes."""
    axes = (*kernel.launch.values(), *site.context.loops)
    return tuple((var, extent) for var, extent in axes if extent > 1)


def stride(kernel: LoweredKernel, site: Site, var: tirx.Var) -> int | None:
    """Return the distance in elements between iterations of a loop, or between work-items.

    ``None`` if the first iterations differ in it, for some values of the other loops; 0 if the
    site does not depend on the loop.
    """
    if site.is_image:
        return None
    if var not in site.variables:
        return 0
    axes = axes_of(kernel, site)
    random = np.random.default_rng(0)
    values: dict[tirx.Var, Array] = {v: random.integers(0, n, (_STRIDE_DRAWS, 1)) for v, n in axes}
    values[var] = np.arange(min(dict(axes)[var], _STRIDE_STEPS))[None]
    try:
        places = evaluate(site.base, values)
    except UnknownError:
        return None
    if site.lanes > 1 and site.base is site.indices[0]:
        places = places[..., 0]
    places = np.broadcast_to(places, (_STRIDE_DRAWS, values[var].size))
    return common(np.diff(places, axis=1))


def common(numbers: Array) -> int | None:
    """Return the common value of an array; ``None`` if values differ, or there are none."""
    return int(numbers.flat[0]) if numbers.size and np.ptp(numbers) == 0 else None


def _holding(conditions: Sequence[tirx.Expr], axes: Sequence[Axis]) -> int:
    """Count the points at which conditions hold, by samples if there are too many."""
    points = prod(extent for _, extent in axes)
    drawn = points > _POINTS
    random = np.random.default_rng(0)
    found, seen = 0, 0
    try:
        while seen < min(points, _POINTS):
            check_time()
            size = min(_CHUNK, min(points, _POINTS) - seen)
            numbers = random.integers(0, points, size) if drawn else np.arange(seen, seen + size)
            mask = all_hold(conditions, values_at(numbers, axes), size)
            found, seen = found + int(mask.sum()), seen + size
    except UnknownError:
        return points
    return found * points // _POINTS if drawn else found


@dataclass(frozen=True)
class Waves:
    """Waves at one piece of code, as rows of work-items."""

    #: Values of variables for each work-item, wave by wave.
    values: dict[tirx.Var, Array]
    #: Waves x work-items: whether the item exists and its conditions hold.
    active: NDArray[np.bool_]
    #: Number of the kernel's waves that each row represents.
    weight: float

    def compute(self, expr: tirx.Expr, lanes: int = 1) -> Array:
        """Evaluate an expression: waves x work-items x lanes."""
        value = np.asarray(evaluate(expr, self.values), np.int64)
        whole = np.broadcast_to(value if lanes > 1 else value[..., None], (self.active.size, lanes))
        return whole.reshape(*self.active.shape, lanes)


def waves_at(
    kernel: LoweredKernel,
    context: CodeContext,
    wave: int,
    used: frozenset[tirx.Var],
    lanes: int = 1,
) -> Waves:
    """Return the waves of ``wave`` work-items that reach a context, with values for ``used``.

    `UnknownError` if conditions depend on data.
    """
    # Unrolled copies of a site have the same waves; a kernel keeps its contexts alive.
    key = id(context), wave, frozenset(map(hash, used)), lanes
    last, found = kernel.memo.get("waves", (None, None))
    if last == key:
        return found
    check_time()
    needed = used | context.variables
    around = (*kernel.blocks, *context.loops)
    axes = [axis for axis in around if axis[0] in needed]
    others = prod(extent for var, extent in around if var not in needed)
    size = kernel.group_size
    # A group smaller than a wave has no further lanes.
    wave = min(wave, 1 << (size - 1).bit_length())
    padded = ceil(size / wave) * wave
    points = prod(extent for _, extent in axes)
    most = max(1, _ELEMENTS // (padded * lanes))
    drawn = points > most
    random = np.random.default_rng(0)
    numbers = random.integers(0, points, most) if drawn else np.arange(points)
    item = np.tile(np.arange(padded), len(numbers))
    values = values_at(np.repeat(numbers, padded), axes)
    values |= values_at(np.minimum(item, size - 1), kernel.items)
    active = (item < size) & all_hold(context.conditions, values, item.size)
    found = Waves(
        values=values,
        active=active.reshape(-1, wave),
        weight=others * points / len(numbers),
    )
    # Only the last waves are cached, because they may be large.
    kernel.memo["waves"] = key, found
    return found


def places_at(kernel: LoweredKernel, site: Site, wave: int) -> tuple[Waves, list[Array]]:
    """Return the waves at a site, and the elements of each instruction: waves x items x run.

    `UnknownError` if they depend on data.
    """
    waves = waves_at(kernel, site.context, wave, site.variables, site.lanes)
    return waves, np.split(waves.compute(site.indices[0], site.lanes), site.apart, axis=2)


def distinct(rows: Array, active: NDArray[np.bool_]) -> Array:
    """Count the different numbers in each row, among the active ones; numbers start at 0."""
    ordered = np.sort(np.where(active, rows, -1), axis=1)
    first = np.diff(ordered, axis=1, prepend=-1) != 0
    return first.sum(axis=1)
