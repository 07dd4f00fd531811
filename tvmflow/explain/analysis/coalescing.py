"""Memory coalescing: how many lines of memory a wave fetches for what it asks for.

Work-items of a wave that access one line at one instruction share its transfer::

    a[group * 64 + item]      64 items, 256 bytes one after another: 4 lines of 64 bytes
    a[item * 64 + group]      64 items, 256 bytes apart: 64 lines, 4 bytes of each are wanted
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import tirx

from ...devices.target import TargetSpec
from ..profiling.record import Finding
from . import loops
from .counting import instructions
from .evaluate import UnknownError
from .hardware import hardware_of
from .lowered import Kernel, kernels_of
from .sites import Site
from .waves import distinct, waves_at

#: Less than this share of what is fetched is wanted: a finding.
_GOOD = 0.75


@dataclass(frozen=True)
class Access:
    """An access to a buffer in global memory, and how it coalesces."""

    kernel: str
    buffer: str
    #: Buffer and index as TVMScript.
    text: str
    line: int
    is_store: bool
    #: Elements between the first two work-items of a wave; ``None`` where it varies or is unknown.
    stride: int | None
    #: Elements between neighbours along each axis of a work-group, by its name.
    strides: Mapping[str, int | None]
    #: Instructions that all work-items run together.
    instructions: int
    #: Bytes that they ask for; what several of them ask for counts for each.
    bytes: int
    #: Lines that waves fetch, each wave for itself, at each instruction.
    transactions: int
    #: Bytes of those lines.
    fetched_bytes: int
    #: Lines that would do for the same elements side by side, per line that is fetched.
    efficiency: float
    #: Whether all is counted: no wave is left out, no index depends on data.
    exact: bool


def coalescing(function: tirx.PrimFunc | Kernel, target: TargetSpec) -> list[Access]:
    """Find how each access to global memory coalesces.

    Parameters
    ----------
    function
        A scheduled primary function, or one of its kernels.
    target
        What it is compiled for: its device's waves and lines are counted.

    Returns
    -------
    list of Access
        In the order of the code, for ``opencl`` and ``cuda``.  An index that depends on data is
        taken as a line for each work-item.
    """
    return [
        _access(kernel, site, target)
        for kernel in kernels_of(function, target)
        for site in kernel.sites
        if site.scope.startswith("global") and not site.is_image
    ]


def _access(kernel: Kernel, site: Site, target: TargetSpec) -> Access:
    hardware = hardware_of(target)
    line, element = hardware.line_bytes, site.element_bytes
    count = instructions(kernel, site)
    asked = count.times * element * (site.lanes if site.is_contiguous else 1)
    stride: int | None = None
    exact = count.exact
    try:
        waves = waves_at(kernel, site.place, hardware.wave, site.variables, site.lanes)
        places = waves.compute(site.indices[0], site.lanes) * element
        lines, least = 0.0, 0.0
        # Elements that are apart are instructions of their own.
        apart = 1 if site.is_contiguous else site.lanes
        for part in np.split(places, apart, axis=2):
            rows = part.reshape(len(part), -1)
            active = np.repeat(waves.active, part.shape[2], axis=1)
            # An element may begin in one line and end in another.
            ends = np.concatenate([rows // line, (rows + element - 1) // line], axis=1)
            lines += distinct(ends, np.tile(active, 2)).sum() * waves.weight
            elements = distinct(rows, active)
            least += np.ceil(elements * element / line).sum() * waves.weight
        stride = _stride(places[:, :, 0] // element, waves.active)
        exact &= waves.exact
    except UnknownError:
        lines, exact = float(count.times), False
        least = asked / line
    return Access(
        kernel.name,
        site.name,
        str(site),
        kernel.line(site),
        site.is_store,
        stride,
        {tag: loops.stride(kernel, site, var) for tag, var in _axes(kernel)},
        count.times,
        asked,
        round(lines),
        round(lines) * line,
        float(least / lines) if lines else 1.0,
        exact,
    )


def _axes(kernel: Kernel) -> list[tuple[str, Any]]:
    """Axes of work-groups, along which items have neighbours."""
    tags = (f"threadIdx.{axis}" for axis in "xyz")
    found = ((tag, *kernel.launch.get(tag, (None, 1))) for tag in tags)
    return [(tag, var) for tag, var, extent in found if extent > 1]


def _stride(places: Any, active: Any) -> int | None:
    """Elements between neighbours, where it is the same for all of them."""
    steps = np.diff(places, axis=1)[active[:, 1:] & active[:, :-1]]
    return int(steps[0]) if steps.size and (steps == steps[0]).all() else None


def coalescing_findings(function: tirx.PrimFunc | Kernel, target: TargetSpec) -> list[Finding]:
    """Accesses that fetch much more than they ask for."""
    accesses = coalescing(function, target)
    traffic: dict[str, int] = {}
    for access in accesses:
        traffic[access.kernel] = traffic.get(access.kernel, 0) + access.fetched_bytes
    findings = []
    for access in accesses:
        share = access.fetched_bytes / max(1, traffic[access.kernel])
        if access.efficiency >= _GOOD:
            continue
        wasted = round(access.fetched_bytes * (1 - access.efficiency))
        findings.append(
            Finding(
                access.kernel,
                "coalescing",
                access.text,
                access.line,
                {"bytes": float(wasted)},
                share * (1 - access.efficiency),
                _sentence(access, hardware_of(target).line_bytes),
                _remedy(access),
            )
        )
    return findings


def _sentence(access: Access, line_bytes: int) -> str:
    verb = "writes" if access.is_store else "reads"
    known = {tag: step for tag, step in access.strides.items() if step is not None}
    if access.stride is not None:
        where = f"{access.stride:,} elements apart"
    elif len(known) == len(access.strides) > 1:
        apart = (f"{step:,} elements apart along {tag}" for tag, step in known.items())
        where = ", ".join(apart)
    else:
        where = "at places that are no fixed distance apart"
    return (
        f"Neighbouring work-items access {access.buffer} {where}: the kernel {verb} "
        f"{access.transactions:,} lines of {line_bytes} bytes where "
        f"{access.transactions * access.efficiency:,.0f} would do."
    )


def _remedy(access: Access) -> str:
    if access.stride is None:
        return (
            "Order the data as it is read, or copy what a work-group needs to local memory "
            "with neighbours side by side."
        )
    if access.is_store:
        return (
            "Let threadIdx.x run along the last axis of what is written, or turn tiles in local "
            "memory."
        )
    return (
        f"Bind threadIdx.x to the loop that steps through {access.buffer} by one element, change "
        "its layout, or turn tiles in local memory."
    )
