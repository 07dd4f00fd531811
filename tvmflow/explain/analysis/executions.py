"""Runs of the code of a kernel, and what iterations and work-items do side by side.

A wave is as many neighbours of a work-group as run one instruction together: they are numbered
along x, then y, then z.  The last one of a group may have fewer.
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

#: Points at which a condition is computed, at most; beyond, as many points are drawn.
_POINTS = 1 << 22
_CHUNK = 1 << 18
#: Elements that waves access and that are looked at, at most; of more waves, some are drawn.
_ELEMENTS = 1 << 17
#: Iterations whose indices are compared, and how many draws of the other loops' variables.
_STRIDE_STEPS = 16
_STRIDE_DRAWS = 4


@dataclass(frozen=True)
class Executions:
    """A number of runs."""

    times: int
    #: Whether it is counted; else an estimate, from points that were drawn or conditions on data.
    exact: bool = True

    def __mul__(self, other: Executions) -> Executions:
        return Executions(self.times * other.times, self.exact and other.exact)


def executions(kernel: LoweredKernel, context: CodeContext) -> Executions:
    """Count how often a piece of code is reached, by all work-items together.

    Conditions without a variable in common are counted apart, and their counts multiplied.
    """
    # A kernel keeps its contexts, and each condition is one object wherever it holds.
    check_time()
    return kernel.once(("executions", id(context)), lambda: _executions(kernel, context))


def _executions(kernel: LoweredKernel, context: CodeContext) -> Executions:
    left = dict((*kernel.launch.values(), *context.loops))
    total = Executions(1, not context.unknown)
    for group in connected([frozenset(variables([one])) for one in context.conditions]):
        conditions = [context.conditions[number] for number in group]
        inside = [(var, left.pop(var)) for var in variables(conditions) if var in left]
        key = "holding", *map(id, conditions)
        total *= kernel.once(key, partial(_holding, conditions, inside))
    return total * Executions(prod(left.values()))


def instructions(kernel: LoweredKernel, site: Site) -> Executions:
    """Count the instructions that a site becomes; elements apart from each other are one each."""
    return executions(kernel, site.context) * Executions(site.apart)


def times_of(kernel: LoweredKernel, sites: Iterable[Site]) -> int:
    """Number of times that some accesses run, all together."""
    return sum(executions(kernel, site.context).times for site in sites)


def all_instructions(kernel: LoweredKernel) -> int:
    """Instructions that all accesses become; those of private memory stand for arithmetic."""
    return sum(instructions(kernel, site).times for site in kernel.sites)


def wave_instructions(kernel: LoweredKernel, wave: int) -> float:
    """Instructions of all waves, about: accesses, which stand for arithmetic as well."""
    return all_instructions(kernel) / kernel.group_size * ceil(kernel.group_size / wave)


def axes_of(kernel: LoweredKernel, site: Site) -> tuple[Axis, ...]:
    """Loops around a site, outermost first; the work-items' are around all others."""
    axes = (*kernel.launch.values(), *site.context.loops)
    return tuple((var, extent) for var, extent in axes if extent > 1)


def stride(kernel: LoweredKernel, site: Site, var: tirx.Var) -> int | None:
    """Elements from one iteration of a loop, or one work-item, to the next.

    ``None`` where it is not the same for the first iterations, wherever the other loops are; 0 for
    what does not depend on the loop.
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
    """The number that all of some are; ``None`` where they differ, or there is none."""
    return int(numbers.flat[0]) if numbers.size and np.ptp(numbers) == 0 else None


def _holding(conditions: Sequence[tirx.Expr], axes: Sequence[Axis]) -> Executions:
    """Number of points at which conditions hold."""
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
        return Executions(points, exact=False)
    return Executions(found * points // _POINTS, exact=False) if drawn else Executions(found)


@dataclass(frozen=True)
class Waves:
    """Waves at one piece of code: rows of work-items."""

    #: Values of variables, one for each work-item of each wave in turn.
    values: dict[tirx.Var, Array]
    #: Waves x work-items: whether one is there and its conditions hold.
    active: NDArray[np.bool_]
    #: How many waves of the kernel's each row stands for.
    weight: float
    #: Whether these are all that the kernel has, up to those that are equal to one of them.
    exact: bool

    def compute(self, expr: tirx.Expr, lanes: int = 1) -> Array:
        """An expression's value: waves x work-items x lanes."""
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
    """Waves of so many work-items, each of which accesses some elements, that reach a context.

    The variables that are used have values there; `UnknownError` if conditions depend on what is in
    memory.
    """
    # Sites that unrolling made of one have the same waves; a kernel keeps its contexts.
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
    # Of a group that is smaller than a wave, no more lanes than it has are looked at.
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
        exact=not drawn and not context.unknown,
    )
    # Only the last ones are kept, as they may be large.
    kernel.memo["waves"] = key, found
    return found


def places_at(kernel: LoweredKernel, site: Site, wave: int) -> tuple[Waves, list[Array]]:
    """Waves at a site, and for each of its instructions elements: waves x work-items x run.

    `UnknownError` if they depend on what is in memory.
    """
    waves = waves_at(kernel, site.context, wave, site.variables, site.lanes)
    return waves, np.split(waves.compute(site.indices[0], site.lanes), site.apart, axis=2)


def distinct(rows: Array, active: NDArray[np.bool_]) -> Array:
    """Number of different numbers from 0 in each row, among the active ones."""
    ordered = np.sort(np.where(active, rows, -1), axis=1)
    first = np.diff(ordered, axis=1, prepend=-1) != 0
    return first.sum(axis=1)
