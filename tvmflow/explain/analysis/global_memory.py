"""Accesses to global memory on GPUs: coalescing and vector width.

Coalescing: work-items of a wave that access the same line in an instruction share its transfer::

    a[group * 64 + item]      64 items, 256 contiguous bytes: 4 lines of 64 bytes
    a[item * 64 + group]      64 items, 256 bytes apart: 64 lines, 4 bytes of each are used

Vector width: contiguous elements that an item accesses in several instructions could be one
vector::

    for k in range(4):
        b[item * 4 + k] = a[item * 4 + k]         a loop: 4 bytes at a time, 16 could be

    b[item * 4] = a[item * 4]                     unrolled: the same
    b[item * 4 + 1] = a[item * 4 + 1] ...

    b[item] = a[item]                             items: each could have four elements
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import tvm_ffi
from tvm import tirx
from tvm.sym import Analyzer

from ...devices.target import TargetSpec
from ...ir.evaluate import Axis, UnknownError
from ..grouping import grouped
from ..profiling.record import Finding
from .accesses import Site
from .executions import all_instructions, common, distinct, instructions, places_at, stride
from .hardware import hardware_of
from .lowered import InKernel, LoweredKernel, of_kernels

#: Share of the fetched bytes that must be used, or there is a finding.
_GOOD = 0.75
#: Smallest share of a kernel's instructions that is a finding.
_SMALL = 0.05


@dataclass(frozen=True)
class Access(InKernel):
    """Coalescing of an access to a buffer in global memory."""

    is_store: bool
    #: Elements between neighbouring work-items of a wave; ``None`` if it varies or is unknown.
    stride: int | None
    #: Elements between neighbours along each axis of a work-group, by the axis's name.
    strides: Mapping[str, int | None]
    #: Sum of the instructions of all work-items.
    instructions: int
    #: Bytes that work-items request; common bytes count for each item.
    bytes: int
    #: Lines that waves fetch, counted for each wave and instruction.
    transactions: int
    #: Bytes of those lines.
    fetched_bytes: int
    #: Lines that contiguous elements would need, per fetched line.
    efficiency: float


@of_kernels
def coalescing(kernel: LoweredKernel, target: TargetSpec) -> Iterator[Access]:
    """Find how each access to global memory coalesces, for ``opencl`` and ``cuda``.

    An index that depends on data counts as a line for each work-item.
    """
    hardware = hardware_of(target)
    line = hardware.line_bytes
    tags = (f"threadIdx.{axis}" for axis in "xyz")
    axes = [(tag, *kernel.launch[tag]) for tag in tags if tag in kernel.launch]
    for site in kernel.sites:
        if not site.is_global:
            continue
        count, element = instructions(kernel, site), site.element_bytes
        requested = count * element * site.run
        lines, least = float(count), requested / line
        between = None
        with suppress(UnknownError):
            waves, parts = places_at(kernel, site, hardware.wave)
            lines = least = 0.0
            for part in parts:
                rows = part.reshape(len(part), -1) * element
                active = np.repeat(waves.active, part.shape[2], axis=1)
                # An element may straddle two lines.
                ends = np.concatenate([rows // line, (rows + element - 1) // line], axis=1)
                lines += distinct(ends, np.tile(active, 2)).sum() * waves.weight
                elements = distinct(rows, active)
                least += np.ceil(elements * element / line).sum() * waves.weight
            steps = np.diff(parts[0][:, :, 0], axis=1)
            # Distance of neighbours, if all have the same.
            between = common(steps[waves.active[:, 1:] & waves.active[:, :-1]])
        yield Access(
            *kernel.at(site),
            is_store=site.is_store,
            stride=between,
            strides={tag: stride(kernel, site, var) for tag, var, extent in axes if extent > 1},
            instructions=count,
            bytes=requested,
            transactions=round(lines),
            fetched_bytes=round(lines) * line,
            efficiency=float(least / lines) if lines else 1.0,
        )


def coalescing_findings(kernel: LoweredKernel, target: TargetSpec) -> Iterator[Finding]:
    """Find accesses that fetch much more than they request."""
    accesses = coalescing(kernel, target)
    traffic = max(1, sum(access.fetched_bytes for access in accesses))
    for access in accesses:
        if access.efficiency < _GOOD:
            wasted = round(access.fetched_bytes * (1 - access.efficiency))
            verb = "writes" if access.is_store else "reads"
            yield access.finding(
                "coalescing",
                {"bytes": float(wasted)},
                access.fetched_bytes / traffic * (1 - access.efficiency),
                f"Neighbouring work-items access {access.buffer} {_distance(access)}: the kernel "
                f"{verb} {access.transactions:,} lines of {hardware_of(target).line_bytes} bytes "
                f"where {access.transactions * access.efficiency:,.0f} would do.",
                _fetched_remedy(access),
            )


def _distance(access: Access) -> str:
    known = {tag: step for tag, step in access.strides.items() if step is not None}
    if access.stride is not None:
        return f"{access.stride:,} elements apart"
    if len(known) == len(access.strides) > 1:
        return ", ".join(f"{step:,} elements apart along {tag}" for tag, step in known.items())
    return "at places that are no fixed distance apart"


def _fetched_remedy(access: Access) -> str:
    turned = "or turn tiles in local memory."
    if access.stride is None:
        needed = "what a work-group needs to local memory with neighbours side by side."
        return f"Order the data as it is read, or copy {needed}"
    if access.is_store:
        return f"Let threadIdx.x run along the last axis of what is written, {turned}"
    loop = f"the loop that steps through {access.buffer} by one element"
    return f"Bind threadIdx.x to {loop}, change its layout, {turned}"


@dataclass(frozen=True)
class VectorWidth(InKernel):
    """Width of similar accesses to a buffer in global memory."""

    is_store: bool
    #: Bytes that an instruction accesses for each item.
    bytes: int
    #: Bytes that an instruction could access.
    possible_bytes: int
    #: Origin of the neighbouring elements: ``loop``, ``unrolled``, ``items``, or ``none``.
    neighbours: str
    #: Sum of the instructions of all work-items.
    instructions: int


@of_kernels
def vector_width(kernel: LoweredKernel, target: TargetSpec) -> Iterator[VectorWidth]:
    """Find how wide accesses to global memory are, and how wide they could be.

    The widest access of the target's device is the limit.  Accesses to a buffer in the same context
    have one record.
    """

    def place(site: Site) -> Hashable:
        around = site.context.loops, tuple(map(str, site.context.conditions))
        return site.buffer, site.is_store, site.lanes, site.run, around

    items = [axis for tag, axis in kernel.launch.items() if tag == "threadIdx.x"]
    for sites in grouped((site for site in kernel.sites if site.is_global), place).values():
        first = sites[0]
        bytes_ = first.run * first.element_bytes
        limit = max(1, hardware_of(target).vector_bytes // bytes_)
        runs = {
            "none": 1,
            "unrolled": _unrolled(sites),
            "loop": _along(first, first.context.loops[-1:]),
            "items": _along(first, items),
        }
        # Widths are powers of two; the first of equal ones wins.
        usable = {name: 1 << (min(run, limit).bit_length() - 1) for name, run in runs.items()}
        neighbours = max(usable, key=lambda name: usable[name])
        yield VectorWidth(
            *kernel.at(first),
            is_store=first.is_store,
            bytes=bytes_,
            possible_bytes=bytes_ * usable[neighbours],
            neighbours=neighbours,
            instructions=sum(instructions(kernel, site) for site in sites),
        )


def _constant(expr: tirx.Expr) -> int | None:
    value = Analyzer().simplify(expr)
    return int(value) if isinstance(value, tirx.IntImm) else None


def _unrolled(sites: Sequence[Site]) -> int:
    """Return the length of the longest contiguous run of accesses."""
    if sites[0].apart > 1:
        return 1
    found = [_constant(site.base - sites[0].base) for site in sites]
    places = sorted({place for place in found if place is not None})
    longest = run = 1
    for before, after in pairwise(places):
        run = run + 1 if after - before == sites[0].lanes else 1
        longest = max(longest, run)
    return longest


def _along(site: Site, axes: Sequence[Axis]) -> int:
    """Return the largest power of two of contiguous neighbours along an axis, or 1."""
    for var, extent in axes:
        if site.apart == 1 and var not in site.context.variables:
            return extent & -extent if step_along(site.base, var) == site.lanes else 1
    return 1


def step_along(index: tirx.Expr, var: tirx.Var) -> int | None:
    """Return the distance in elements between values of a variable, if it is a constant."""
    following = tvm_ffi.structural_map(index, (tirx.Var, lambda v: v + 1 if v.same_as(var) else v))
    return _constant(following - index)


_REMEDY = {
    "loop": "Vectorize the innermost loop, or split it and vectorize its inner part.",
    "unrolled": "Vectorize the loop that is unrolled, and let the tensor's rows begin at "
    "multiples of the vector.",
    "items": "Let each work-item compute a vector: split the loop before threadIdx.x is bound, "
    "and vectorize the inner part.",
}


def vector_findings(kernel: LoweredKernel, target: TargetSpec) -> Iterator[Finding]:
    """Find accesses that are narrower than they could be."""
    total = all_instructions(kernel)
    for width in vector_width(kernel, target):
        saved = width.instructions * (1 - width.bytes / width.possible_bytes)
        if width.neighbours == "none" or saved < _SMALL * total:
            continue
        verb = "written" if width.is_store else "read"
        yield width.finding(
            "vector-width",
            # An instruction occupies its wave for at least a cycle.
            {"cycles": saved / hardware_of(target).wave},
            saved / total,
            f"{width.buffer} is {verb} {width.bytes} bytes at a time; "
            f"{width.possible_bytes} bytes are contiguous: {width.instructions:,} "
            f"instructions where {width.instructions - saved:,.0f} would do.",
            _REMEDY[width.neighbours],
        )
