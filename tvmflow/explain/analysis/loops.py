"""Loops of code for CPUs: what their iterations access, one after the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm_ffi
from tvm import tirx

from .evaluate import Array, UnknownError, evaluate
from .lowered import Kernel
from .sites import Site

#: Iterations whose places are compared, and how many draws of the other loops' variables.
_STEPS = 16
_DRAWS = 4


@dataclass(frozen=True)
class Statement:
    """A store, and what is loaded for it."""

    store: Site
    loads: tuple[Site, ...]

    @property
    def sums_up(self) -> bool:
        """Whether it adds to what it has stored before."""
        return any(
            load.buffer.same_as(self.store.buffer)
            and tvm_ffi.structural_equal(load.indices, self.store.indices, map_free_vars=False)
            for load in self.loads
        )

    @property
    def numbers(self) -> int:
        """Numbers that it computes at a time."""
        return self.store.lanes * tvm_ffi.dtype(self.store.buffer.dtype).lanes


def statements(kernel: Kernel) -> list[Statement]:
    """All stores of a kernel, in the order of the code."""
    found: dict[int, list[Site]] = {}
    for site in kernel.sites:
        found.setdefault(site.statement, []).append(site)
    return [
        Statement(site, tuple(load for load in sites if not load.is_store))
        for sites in found.values()
        for site in sites
        if site.is_store
    ]


def axes_of(kernel: Kernel, site: Site) -> tuple[tuple[Any, int], ...]:
    """Loops around a site, outermost first; the work-items' are around all others."""
    axes = (*kernel.launch.values(), *site.place.loops)
    return tuple((var, extent) for var, extent in axes if extent > 1)


def stride(kernel: Kernel, site: Site, var: Any) -> int | None:
    """Elements from one iteration of a loop to the next.

    Returns
    -------
    int or None
        Where it is the same for the first iterations, wherever the other loops are; 0 for what
        does not depend on the loop.
    """
    if site.is_image:
        return None
    (index,) = site.indices
    index = index.base if isinstance(index, tirx.Ramp) else index
    if var not in site.variables:
        return 0
    axes = axes_of(kernel, site)
    random = np.random.default_rng(0)
    values: dict[Any, Array] = {v: random.integers(0, n, (_DRAWS, 1)) for v, n in axes}
    values[var] = np.arange(min(dict(axes)[var], _STEPS))[None]
    try:
        places = evaluate(index, values)
        if site.lanes > 1 and index is site.indices[0]:
            places = places[..., 0]
        places = np.broadcast_to(places, (_DRAWS, values[var].size))
    except UnknownError:
        return None
    steps = np.diff(places, axis=1)
    return int(steps[0, 0]) if steps.size and (steps == steps[0, 0]).all() else None


def name_of(var: Any) -> str:
    """Name of a loop."""
    return str(var.name)
