"""Vector width: bytes that a work-item accesses at a time, and neighbours it could access too.

Elements side by side that one item accesses at several instructions could be one vector::

    for k in range(4):
        b[item * 4 + k] = a[item * 4 + k]         a loop: 4 bytes at a time, 16 could be

    b[item * 4] = a[item * 4]                     unrolled: the same
    b[item * 4 + 1] = a[item * 4 + 1] ...

    b[item] = a[item]                             items: each could have four elements
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.sym import Analyzer

from ...devices.target import TargetSpec
from ..profiling.record import Finding
from .counting import instructions
from .hardware import hardware_of
from .lowered import Kernel, kernels_of
from .sites import Site

#: Accesses of a smaller share of a kernel's instructions are not worth a sentence.
_SMALL = 0.05


@dataclass(frozen=True)
class VectorWidth:
    """Accesses to a buffer in global memory that are alike, and how wide they are."""

    kernel: str
    buffer: str
    #: The first one: buffer and index as TVMScript.
    text: str
    line: int
    is_store: bool
    #: Bytes that an instruction accesses for each item.
    bytes: int
    #: Bytes that one could.
    possible_bytes: int
    #: Where the neighbours are: ``loop``, ``unrolled``, ``items``, or ``none``.
    neighbours: str
    #: Instructions that all work-items run together.
    instructions: int


def vector_width(function: tirx.PrimFunc | Kernel, target: TargetSpec) -> list[VectorWidth]:
    """Find how wide accesses to global memory are, and how wide they could be.

    Parameters
    ----------
    function
        A scheduled primary function, or one of its kernels.
    target
        What it is compiled for: its device's widest access is the limit.

    Returns
    -------
    list of VectorWidth
        In the order of the code; one for all accesses to a buffer at the same place.
    """
    widest = hardware_of(target).vector_bytes
    found = []
    for kernel in kernels_of(function, target):
        alike: dict[Any, list[Site]] = {}
        for site in kernel.sites:
            if site.scope.startswith("global") and not site.is_image:
                alike.setdefault(_key(site), []).append(site)
        found += [_width(kernel, sites, widest) for sites in alike.values()]
    return found


def _key(site: Site) -> tuple[Any, ...]:
    """What is the same for sites that could be one."""
    conditions = tuple(str(condition) for condition in site.place.conditions)
    loops = tuple(id(var) for var, _ in site.place.loops)
    kind = site.is_store, site.lanes, site.is_contiguous
    return site.buffer, kind, loops, conditions


def _width(kernel: Kernel, sites: Sequence[Site], widest: int) -> VectorWidth:
    first = sites[0]
    lanes = first.lanes if first.is_contiguous else 1
    bytes_ = lanes * first.element_bytes
    limit = max(1, widest // bytes_)
    factor, neighbours = 1, "none"
    for name, count in (
        ("unrolled", _unrolled(sites, lanes)),
        ("loop", _along(first, lanes, first.place.loops[-1:])),
        ("items", _along(first, lanes, _items(kernel))),
    ):
        usable = _power_of_two(min(count, limit))
        if usable > factor:
            factor, neighbours = usable, name
    return VectorWidth(
        kernel.name,
        first.name,
        str(first),
        kernel.line(first),
        first.is_store,
        bytes_,
        bytes_ * factor,
        neighbours,
        sum(instructions(kernel, site).times for site in sites),
    )


def _items(kernel: Kernel) -> Sequence[tuple[Any, int]]:
    return [kernel.launch["threadIdx.x"]] if "threadIdx.x" in kernel.launch else []


def _power_of_two(number: int) -> int:
    return 1 << (max(1, number).bit_length() - 1)


def _base(site: Site) -> Any:
    (index,) = site.indices
    return index.base if isinstance(index, tirx.Ramp) else index


def _constant(expr: Any) -> int | None:
    value = Analyzer().simplify(expr)
    return int(value) if isinstance(value, tirx.IntImm) else None


def _unrolled(sites: Sequence[Site], lanes: int) -> int:
    """Length of the longest run of accesses side by side."""
    if not sites[0].is_contiguous:
        return 1
    found = [_constant(_base(site) - _base(sites[0])) for site in sites]
    places = sorted({place for place in found if place is not None})
    longest = run = 1
    for before, after in pairwise(places):
        run = run + 1 if after - before == lanes else 1
        longest = max(longest, run)
    return longest


def _along(site: Site, lanes: int, axes: Sequence[tuple[Any, int]]) -> int:
    """Neighbours along an axis: the largest power of two of them that divides it."""
    if not axes or not site.is_contiguous:
        return 1
    ((var, extent),) = axes
    if var in site.place.variables:
        return 1
    base = _base(site)
    following = tvm_ffi.structural_map(base, (tirx.Var, lambda v: v + 1 if v.same_as(var) else v))
    return extent & -extent if _constant(following - base) == lanes else 1


_REMEDY = {
    "loop": "Vectorize the innermost loop, or split it and vectorize its inner part.",
    "unrolled": "Vectorize the loop that is unrolled, and let the tensor's rows begin at "
    "multiples of the vector.",
    "items": "Let each work-item compute a vector: split the loop before threadIdx.x is bound, "
    "and vectorize the inner part.",
}


def vector_findings(function: tirx.PrimFunc | Kernel, target: TargetSpec) -> list[Finding]:
    """Accesses that are narrower than they could be."""
    return [
        finding
        for kernel in kernels_of(function, target)
        for finding in _narrow(kernel, vector_width(kernel, target), hardware_of(target).wave)
    ]


def _narrow(kernel: Kernel, widths: Sequence[VectorWidth], wave: int) -> list[Finding]:
    findings = []
    # Accesses to private memory stand for arithmetic.
    total = sum(instructions(kernel, site).times for site in kernel.sites)
    for width in widths:
        saved = width.instructions * (1 - width.bytes / width.possible_bytes)
        if width.neighbours == "none" or saved < _SMALL * total:
            continue
        verb = "written" if width.is_store else "read"
        findings.append(
            Finding(
                width.kernel,
                "vector-width",
                width.text,
                width.line,
                # An instruction occupies its wave for a cycle at least.
                {"cycles": saved / wave},
                saved / total,
                f"{width.buffer} is {verb} {width.bytes} bytes at a time; "
                f"{width.possible_bytes} bytes lie side by side: {width.instructions:,} "
                f"instructions where {width.instructions - saved:,.0f} would do.",
                _REMEDY[width.neighbours],
            )
        )
    return findings
