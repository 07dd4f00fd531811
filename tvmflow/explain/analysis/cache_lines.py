"""Lines of memory on CPUs: how much of what comes into the cache the next iterations use.

Memory comes in lines of 64 bytes, from pages of 4096.  What consecutive iterations of the inner
loops access, as far as the first cache holds it, is one window::

    for k: total += a[k]                      16 numbers of each line
    for k: total += b[k * 1024]               one of each line, and a page for each
    for k: for j: total[j] += b[k, j]         whole lines; where the rows are long, many pages
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from tvm import tirx

from ...devices.target import TargetSpec
from ..profiling.record import Finding
from .counting import executions
from .evaluate import Array, UnknownError, digits, evaluate, evaluate_all
from .hardware import CORE, hardware_of
from .loops import axes_of, name_of, stride
from .lowered import Kernel, code_for_cpu
from .sites import Site, buffer_bytes
from .spans import Touched, touched_by

#: Less than this share of the lines is used: a finding.  Short rows of neighbours that begin
#: within a line touch one more than they fill.
_GOOD = 0.75
_SHORT = 0.5
#: What comes less often is not worth a copy.
_AGAIN = 2.0
#: Iterations that are looked at in a window, at most.
_POINTS = 1 << 13
#: Windows that are looked at.
_DRAWS = 3

_Axes = Sequence[tuple[Any, int]]


@dataclass(frozen=True)
class LineUse:
    """What a loop nest accesses of a buffer, and how much of the lines that come for it it uses.

    The counts are estimates: some windows are looked at, and caches are taken to keep one.
    """

    kernel: str
    buffer: str
    #: The first access: buffer and index as TVMScript.
    text: str
    line: int
    is_store: bool
    #: The innermost loop that the index depends on, and bytes from one iteration to the next;
    #: ``None`` where these vary.
    loop: str
    stride_bytes: int | None
    #: Whether these iterations access neighbours.
    is_run: bool
    #: Lines that come into the first cache.
    lines: int
    #: How often each line of the buffer comes, on average.
    times: float
    #: Bytes of them that are used while they are there, from 0 to 1.
    efficiency: float
    #: Pages that the lines are on, counted in each window.
    pages: int
    #: Pages that a window has, of all buffers of the loop nest.
    window_pages: int


def cache_lines(function: tirx.PrimFunc | Kernel, target: TargetSpec) -> list[LineUse]:
    """Find how much of each line of memory consecutive iterations use.

    Parameters
    ----------
    function
        A scheduled primary function, or one of its kernels.
    target
        What it is compiled for.

    Returns
    -------
    list of LineUse
        One for each buffer that a loop nest reads, and each that it writes, in the order of the
        code; empty for GPUs.  What depends on data is left out.
    """
    found = []
    for kernel in code_for_cpu(function, target):
        nests: dict[tuple[int, ...], list[Site]] = {}
        for site in kernel.sites:
            if site.scope.startswith("global") and not site.is_image:
                loops = tuple(id(var) for var, _ in site.place.loops)
                nests.setdefault(loops, []).append(site)
        for sites in nests.values():
            found += _nest(kernel, sites, hardware_of(target).line_bytes)
    return found


class _Window:
    """Iterations of the inner loops of a nest whose lines the first cache holds."""

    def __init__(self, kernel: Kernel, sites: Sequence[Site], line_bytes: int):
        self.line_bytes = line_bytes
        self.groups: dict[tuple[Any, bool], list[Site]] = {}
        for site in sites:
            self.groups.setdefault((site.buffer, site.is_store), []).append(site)
        used = frozenset().union(*(s.variables | s.place.variables for s in sites))
        #: Loops that something depends on, outermost first.
        self.axes = [axis for axis in axes_of(kernel, sites[0]) if axis[0] in used]
        #: Iterations of each in a window.
        self.counts = {var: 1 for var, _ in self.axes}
        self._grow()

    def touched(self, draw: int) -> dict[tuple[Any, bool], Touched]:
        """What one window accesses: the middle one, or one that is drawn."""
        random = np.random.default_rng(draw)
        inner = [(var, self.counts[var]) for var, _ in self.axes if self.counts[var] > 1]
        points = prod(count for _, count in inner)
        values: dict[Any, Array] = {}
        for var, extent in self.axes:
            windows = extent // self.counts[var]
            values[var] = np.full(
                1, (random.integers(0, windows) if draw else windows // 2) * self.counts[var]
            )
        for var, steps in digits(np.arange(points), inner).items():
            values[var] = values[var] + steps
        return {key: self._of(group, values, points) for key, group in self.groups.items()}

    def number(self, axes: _Axes) -> float:
        """How many windows there are; loops outside of it that nothing depends on repeat it."""
        number, outside = 1.0, False
        for var, extent in reversed(axes):
            count = self.counts.get(var, 1 if outside else extent)
            outside |= count < extent
            number *= extent / count
        return number

    def _of(self, sites: Sequence[Site], values: Mapping[Any, Array], points: int) -> Touched:
        starts: list[Array] = []
        ends: list[Array] = []
        for site in sites:
            mask = evaluate_all(site.place.conditions, values, points)
            (index,) = site.indices
            if site.is_contiguous and isinstance(index, tirx.Ramp):
                index = index.base
            place = np.asarray(evaluate(index, values), np.int64)
            each = 1 if site.is_contiguous else site.lanes
            shape = (points, each) if each > 1 else (points,)
            place = np.broadcast_to(place, shape)[mask].reshape(-1) * site.element_bytes
            size = site.element_bytes * (site.lanes if site.is_contiguous else 1)
            starts.append(place)
            ends.append(place + size)
        return touched_by(np.concatenate(starts), np.concatenate(ends), self.line_bytes)

    def _grow(self) -> None:
        """Take in loops from the innermost one outwards."""
        for var, extent in reversed(self.axes):
            fitting = 1
            while fitting < extent and self._fits(var, min(2 * fitting, extent)):
                fitting = min(2 * fitting, extent)
            if fitting < extent and self._fits(var, min(3 * fitting // 2, extent)):
                fitting = min(3 * fitting // 2, extent)
            self.counts[var] = fitting
            if fitting < extent:
                break

    def _fits(self, var: Any, count: int) -> bool:
        before, self.counts[var] = self.counts[var], count
        if prod(self.counts.values()) > _POINTS:
            self.counts[var] = before
            return False
        lines = sum(touched.lines for touched in self.touched(0).values())
        self.counts[var] = before
        return lines <= CORE.lines


def _nest(kernel: Kernel, sites: Sequence[Site], line_bytes: int) -> list[LineUse]:
    try:
        window = _Window(kernel, sites, line_bytes)
        draws = [window.touched(draw) for draw in range(_DRAWS)]
    except UnknownError:
        return []
    windows = window.number(axes_of(kernel, sites[0]))
    window_pages = max(sum(t.pages for t in draw.values()) for draw in draws)
    uses = []
    for key, group in window.groups.items():
        first = group[0]
        lines = sum(draw[key].lines for draw in draws)
        come = lines / _DRAWS * windows
        used = sum(draw[key].bytes for draw in draws)
        loop = _loop(kernel, first)
        step = stride(kernel, first, loop) if loop is not None else 0
        uses.append(
            LineUse(
                kernel.name,
                first.name,
                str(first),
                kernel.line(first),
                first.is_store,
                "" if loop is None else name_of(loop),
                None if step is None else step * first.element_bytes,
                step == first.lanes,
                round(come),
                come * line_bytes / buffer_bytes(first.buffer),
                used / (lines * line_bytes) if lines else 1.0,
                round(sum(draw[key].pages for draw in draws) / _DRAWS * windows),
                window_pages,
            )
        )
    return uses


def _loop(kernel: Kernel, site: Site) -> Any:
    """The innermost loop that a place depends on."""
    return next((var for var, _ in reversed(axes_of(kernel, site)) if var in site.variables), None)


def line_findings(function: tirx.PrimFunc | Kernel, target: TargetSpec) -> list[Finding]:
    """Accesses that use little of each line, or that go from page to page."""
    findings = []
    for kernel in code_for_cpu(function, target):
        uses = cache_lines(kernel, target)
        lines = sum(use.lines for use in uses)
        pages = sum(use.pages for use in uses)
        stores = (site for site in kernel.sites if site.is_store)
        steps = sum(executions(kernel, store.place).times for store in stores)
        # What no loop goes through is one access.
        for use in (use for use in uses if use.loop):
            if use.efficiency < (_SHORT if use.is_run else _GOOD):
                findings.append(_line_finding(use, lines, hardware_of(target).line_bytes))
            elif use.window_pages > CORE.pages and use.times > _AGAIN and 2 * use.pages > pages:
                findings.append(_page_finding(use, steps))
    return findings


def _line_finding(use: LineUse, lines: int, line_bytes: int) -> Finding:
    wasted = use.lines * (1 - use.efficiency)
    verb = "written" if use.is_store else "read"
    if use.stride_bytes is None:
        where = "at no fixed distance"
    else:
        where = f"{use.stride_bytes:,} bytes apart"
    return Finding(
        use.kernel,
        "cache-lines",
        use.text,
        use.line,
        {"bytes": wasted * line_bytes},
        wasted / max(1, lines),
        f"Iterations of {use.loop} access {use.buffer} {where}: of each line of {line_bytes} "
        f"bytes {use.efficiency * line_bytes:.0f} are {verb} before it leaves the first cache; "
        f"about {use.lines:,} lines come where {use.lines - wasted:,.0f} would do.",
        f"Let the innermost loop go through {use.buffer} element by element: reorder loops, or "
        "copy it into the order in which it is accessed.",
    )


def _page_finding(use: LineUse, steps: int) -> Finding:
    cycles = use.pages * CORE.page_cycles
    return Finding(
        use.kernel,
        "pages",
        use.text,
        use.line,
        {"cycles": float(cycles)},
        cycles / (cycles + steps),
        f"Inner loops access {use.window_pages} pages in turn, mostly of {use.buffer}, and a core "
        f"knows the addresses of {CORE.pages}: it asks for others {use.pages:,} times. Rows that "
        "begin at multiples of a page also share few places of the cache.",
        f"Copy {use.buffer} into panels that are read in order, once before the loops.",
    )
