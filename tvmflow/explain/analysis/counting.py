"""How often the code of a kernel runs, over all of its work-items."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, prod
from typing import Any

import numpy as np

from .deadline import check_time
from .evaluate import UnknownError, digits, evaluate_all, variables
from .lowered import Kernel
from .sites import Place, Site

#: Points at which a condition is computed, at most; beyond, as many points are drawn.
LIMIT = 1 << 22
_CHUNK = 1 << 18


@dataclass(frozen=True)
class Count:
    """How often something runs."""

    times: int
    #: Whether it is counted; else an estimate, from points that were drawn or conditions on data.
    exact: bool = True

    def __mul__(self, other: Count) -> Count:
        return Count(self.times * other.times, self.exact and other.exact)


def executions(kernel: Kernel, place: Place) -> Count:
    """Count how often a place is reached, by all work-items together.

    Conditions without a variable in common are counted apart, and their counts multiplied.
    """
    # A kernel keeps its places, and each condition is one object wherever it holds.
    check_time()
    key = "executions", id(place)
    if key not in kernel.memo:
        kernel.memo[key] = _executions(kernel, place)
    found: Count = kernel.memo[key]
    return found


def _executions(kernel: Kernel, place: Place) -> Count:
    axes = dict((*kernel.launch.values(), *place.loops))
    total = Count(1, not place.unknown)
    left = dict(axes)
    for conditions in _independent(place.conditions):
        used = [var for var in variables(conditions) if var in axes]
        for var in used:
            del left[var]
        key = "holding", *map(id, conditions)
        if key not in kernel.memo:
            kernel.memo[key] = _holding(conditions, [(var, axes[var]) for var in used])
        total *= kernel.memo[key]
    return total * Count(prod(left.values()))


def instructions(kernel: Kernel, site: Site) -> Count:
    """Count the instructions that a site becomes; elements apart from each other are one each."""
    return executions(kernel, site.place) * Count(1 if site.is_contiguous else site.lanes)


def wave_instructions(kernel: Kernel, wave: int) -> float:
    """Instructions of all waves, about: accesses, which stand for arithmetic as well."""
    times = sum(instructions(kernel, site).times for site in kernel.sites)
    return times / kernel.group_size * ceil(kernel.group_size / wave)


def _independent(conditions: tuple[Any, ...]) -> list[list[Any]]:
    """Groups of conditions with variables in common."""
    groups: list[tuple[set[Any], list[Any]]] = []
    for condition in conditions:
        names, members = set(variables([condition])), [condition]
        for group in [g for g in groups if g[0] & names]:
            groups.remove(group)
            names |= group[0]
            members = group[1] + members
        groups.append((names, members))
    return [members for _, members in groups]


def _holding(conditions: list[Any], axes: list[tuple[Any, int]]) -> Count:
    """At how many points conditions hold."""
    points = prod(extent for _, extent in axes)
    drawn = points > LIMIT
    random = np.random.default_rng(0)
    found, seen = 0, 0
    try:
        while seen < min(points, LIMIT):
            size = min(_CHUNK, min(points, LIMIT) - seen)
            numbers = random.integers(0, points, size) if drawn else np.arange(seen, seen + size)
            mask = evaluate_all(conditions, digits(numbers, axes), size)
            found, seen = found + int(mask.sum()), seen + size
    except UnknownError:
        return Count(points, exact=False)
    return Count(found * points // LIMIT, exact=False) if drawn else Count(found)
