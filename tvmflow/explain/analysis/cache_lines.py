"""Use of cache lines on CPUs: how much of each fetched line the next iterations access.

Memory is fetched in lines of 64 bytes, from pages of 4096.  A window is the consecutive iterations
of the inner loops whose lines fit the first cache::

    for k: total += a[k]                      16 numbers of each line
    for k: total += b[k * 1024]               one of each line, and a page for each
    for k: for j: total[j] += b[k, j]         whole lines; many pages if the rows are long
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from tvm import tirx

from ...devices.target import TargetSpec
from ...ir.evaluate import Array, Axis, UnknownError, all_hold, evaluate, values_at
from ...ir.traffic import buffer_bytes
from ..grouping import grouped
from ..profiling.record import Finding
from .accesses import Site
from .deadline import check_time
from .executions import axes_of, stride, times_of
from .hardware import CORE, hardware_of
from .lowered import InKernel, LoweredKernel, of_cpu_code

#: Shares of the lines whose use is good enough, in general and for short rows of neighbours, which
#: begin within a line and touch one more than they fill.
_GOOD = 0.75
_SHORT = 0.5
#: Fetches of each line from which on a copy is worth its cost.
_AGAIN = 2.0
#: Largest number of iterations in a window.
_POINTS = 1 << 13
#: Number of windows that are sampled.
_DRAWS = 3


@dataclass(frozen=True)
class LineUse(InKernel):
    """Lines of a buffer that a loop nest accesses, and how much of them it uses.

    Text and line are those of the first access.  The counts are estimates from some windows, and
    assume that a cache keeps one window.
    """

    is_store: bool
    #: Innermost loop that the index depends on, and bytes between its iterations; ``None`` if these
    #: vary.
    loop: str
    stride_bytes: int | None
    #: Whether these iterations access neighbours.
    is_run: bool
    #: Lines that are fetched into the first cache.
    lines: int
    #: Average number of fetches of each line of the buffer.
    times: float
    #: Share of the fetched bytes that are used before the line leaves, from 0 to 1.
    efficiency: float
    #: Pages of the lines, counted for each window.
    pages: int
    #: Pages of a window, for all buffers of the loop nest.
    window_pages: int


class _Window:
    """Iterations of the inner loops of a nest whose lines the first cache holds."""

    def __init__(self, kernel: LoweredKernel, sites: Sequence[Site], line_bytes: int):
        self.line_bytes = line_bytes
        self.groups = grouped(sites, lambda site: (site.buffer, site.is_store))
        used = frozenset().union(*(s.variables | s.context.variables for s in sites))
        #: Loops that an index or a condition depends on, the outermost first.
        self.axes = [axis for axis in axes_of(kernel, sites[0]) if axis[0] in used]
        #: Iterations of each loop in a window, which grows outwards from the innermost loop.
        self.counts = {var: 1 for var, _ in self.axes}
        for var, extent in reversed(self.axes):
            fitting = 1
            while fitting < extent and self._fits(var, min(2 * fitting, extent)):
                fitting = min(2 * fitting, extent)
            if fitting < extent and self._fits(var, min(3 * fitting // 2, extent)):
                fitting = min(3 * fitting // 2, extent)
            self.counts[var] = fitting
            if fitting < extent:
                break

    def touched(self, draw: int) -> dict[tuple[tirx.Buffer, bool], Array]:
        """Count lines, bytes and pages of the middle window (draw 0) or of a random one."""
        random = np.random.default_rng(draw)
        inner = [(var, self.counts[var]) for var, _ in self.axes if self.counts[var] > 1]
        points = prod(count for _, count in inner)
        values: dict[tirx.Var, Array] = {}
        for var, extent in self.axes:
            windows = extent // self.counts[var]
            window = random.integers(0, windows) if draw else windows // 2
            values[var] = np.full(1, window * self.counts[var])
        for var, steps in values_at(np.arange(points), inner).items():
            values[var] = values[var] + steps
        return {key: self._of(group, values, points) for key, group in self.groups.items()}

    def number(self, axes: Sequence[Axis]) -> float:
        """Return the number of windows; outer loops that nothing depends on repeat them."""
        number, outside = 1.0, False
        for var, extent in reversed(axes):
            count = self.counts.get(var, 1 if outside else extent)
            outside |= count < extent
            number *= extent / count
        return number

    def _of(self, sites: Sequence[Site], values: Mapping[tirx.Var, Array], points: int) -> Array:
        check_time()
        spans: list[Array] = []
        for site in sites:
            mask = all_hold(site.context.conditions, values, points)
            index = site.indices[0] if site.apart > 1 else site.base
            start = np.asarray(evaluate(index, values), np.int64)
            shape = (points, site.apart) if site.apart > 1 else (points,)
            start = np.broadcast_to(start, shape)[mask].reshape(-1) * site.element_bytes
            spans.append(np.stack([start, start + site.element_bytes * site.run]))
        starts, ends = np.concatenate(spans, axis=1)
        return _touched(starts, ends, self.line_bytes)

    def _fits(self, var: tirx.Var, count: int) -> bool:
        self.counts[var] = count
        if prod(self.counts.values()) > _POINTS:
            return False
        return sum(int(lines) for lines, _, _ in self.touched(0).values()) <= CORE.lines


def _touched(starts: Array, ends: Array, line_bytes: int) -> Array:
    """Count lines, bytes and pages of unordered spans of bytes in a buffer."""
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], np.maximum.accumulate(ends[order])
    # Each byte counts for the first span that contains it.
    begin = np.maximum(starts, np.concatenate([starts[:1], ends[:-1]]))
    used = np.maximum(ends - begin, 0).sum()
    lines, pages = (_spanned(starts, ends, size) for size in (line_bytes, CORE.page_bytes))
    return np.array([lines, used, pages], np.int64)


def _spanned(starts: Array, ends: Array, size: int) -> int:
    """Count the blocks of memory that ordered spans touch."""
    first, last = starts // size, (ends - 1) // size
    before = np.concatenate([first[:1] - 1, last[:-1]])
    return int(np.maximum(last - np.maximum(before, first - 1), 0).sum())


@of_cpu_code
def cache_lines(kernel: LoweredKernel, target: TargetSpec) -> Iterator[LineUse]:
    """Find how much of each line of memory consecutive iterations use.

    There is a record for each buffer that a loop nest reads, and each that it writes.  Accesses
    that depend on data are left out.
    """
    line_bytes = hardware_of(target).line_bytes
    accesses = (site for site in kernel.sites if site.is_global)
    for sites in grouped(accesses, lambda site: site.context.loops).values():
        try:
            window = _Window(kernel, sites, line_bytes)
            draws = [window.touched(draw) for draw in range(_DRAWS)]
        except UnknownError:
            continue
        windows = window.number(axes_of(kernel, sites[0]))
        window_pages = max(sum(int(pages) for _, _, pages in draw.values()) for draw in draws)
        for key, group in window.groups.items():
            first = group[0]
            lines, used, pages = np.sum([draw[key] for draw in draws], axis=0).tolist()
            come = lines / _DRAWS * windows
            # Innermost loop that the index depends on.
            around = (var for var, _ in reversed(axes_of(kernel, first)) if var in first.variables)
            loop = next(around, None)
            step = stride(kernel, first, loop) if loop is not None else 0
            yield LineUse(
                *kernel.at(first),
                is_store=first.is_store,
                loop="" if loop is None else str(loop.name),
                stride_bytes=None if step is None else step * first.element_bytes,
                is_run=step == first.lanes,
                lines=round(come),
                times=come * line_bytes / buffer_bytes(first.buffer),
                efficiency=used / (lines * line_bytes) if lines else 1.0,
                pages=round(pages / _DRAWS * windows),
                window_pages=window_pages,
            )


def line_findings(kernel: LoweredKernel, target: TargetSpec) -> Iterator[Finding]:
    """Find accesses that use little of each line, or that go from page to page."""
    uses = cache_lines(kernel, target)
    lines = sum(use.lines for use in uses)
    pages = sum(use.pages for use in uses)
    steps = times_of(kernel, kernel.stores)
    line_bytes = hardware_of(target).line_bytes
    # An access outside of loops runs once.
    for use in (use for use in uses if use.loop):
        if use.efficiency < (_SHORT if use.is_run else _GOOD):
            wasted = use.lines * (1 - use.efficiency)
            verb = "written" if use.is_store else "read"
            step = use.stride_bytes
            where = "at no fixed distance" if step is None else f"{step:,} bytes apart"
            yield use.finding(
                "cache-lines",
                {"bytes": wasted * line_bytes},
                wasted / max(1, lines),
                f"Iterations of {use.loop} access {use.buffer} {where}: of each line of "
                f"{line_bytes} bytes {use.efficiency * line_bytes:.0f} are {verb} before it leaves "
                f"the first cache; about {use.lines:,} lines come where {use.lines - wasted:,.0f} "
                "would do.",
                f"Let the innermost loop go through {use.buffer} element by element: reorder "
                "loops, or copy it into the order in which it is accessed.",
            )
        elif use.window_pages > CORE.pages and use.times > _AGAIN and 2 * use.pages > pages:
            cycles = use.pages * CORE.page_cycles
            yield use.finding(
                "pages",
                {"cycles": float(cycles)},
                cycles / (cycles + steps),
                f"Inner loops access {use.window_pages} pages in turn, mostly of {use.buffer}, and "
                f"a core knows the addresses of {CORE.pages}: it asks for others {use.pages:,} "
                "times. Rows that begin at multiples of a page also share few places of the cache.",
                f"Copy {use.buffer} into panels that are read in order, once before the loops.",
            )
