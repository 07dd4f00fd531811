"""Share of the processors that other programs take during a measurement.

Times measured next to other programs are too long, by an amount that differs between kernels.
Reports above :data:`QUIET` say so, and draw no conclusions.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

_STAT, _PROC = Path("/proc/stat"), Path("/proc")
#: Share of all processors' time, from 0 to 1, above which other programs disturb a measurement.
QUIET = 0.1
#: Shortest observation in seconds: the counters have steps of 10 ms.
_LEAST_S = 0.3


class CpuTimes(NamedTuple):
    """Seconds since the machine started, summed over its processors."""

    busy: float
    total: float
    #: Seconds of this process, of children that it waited for, and of living descendants.
    own: float


def cpu_times() -> CpuTimes | None:
    """Read Linux's counters; ``None`` on systems without them."""
    tick_s = os.sysconf("SC_CLK_TCK")
    try:
        name, *ticks = _STAT.read_text(encoding="ascii").partition("\n")[0].split()
        # user, nice, system, idle, iowait, irq, softirq, steal; guests are in user and nice.
        times = [int(tick) / tick_s for tick in ticks[:8]]
    except (OSError, ValueError):
        return None
    if name != "cpu" or len(times) < 8:
        return None
    own = sum(os.times()[:4]) + _of_descendants() / tick_s
    return CpuTimes(sum(times) - times[3] - times[4], sum(times), own)


def _of_descendants() -> int:
    """Return the clock ticks of all living descendants of this process."""
    children: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for path in _PROC.glob("[0-9]*/stat"):
        try:
            # A command's name, in parentheses, may have spaces: state, parent, ... follow it.
            fields = path.read_bytes().rpartition(b")")[2].split()
            # utime and stime, of the process and of children that it waited for.
            children[int(fields[1])].append((int(path.parent.name), sum(map(int, fields[11:15]))))
        except (OSError, ValueError, IndexError):
            continue
    total, parents = 0, [os.getpid()]
    while parents:
        for child, ticks in children.pop(parents.pop(), ()):
            total += ticks
            parents.append(child)
    return total


def others_share(begin: CpuTimes | None, end: CpuTimes | None) -> float | None:
    """Return the share of processor time that other programs took, from 0 to 1.

    Time that a hypervisor gave to other machines counts, too.  ``None`` if it is unknown, or no
    time passed.
    """
    if begin is None or end is None or end.total <= begin.total:
        return None
    others = (end.busy - begin.busy) - (end.own - begin.own)
    # The counters have steps of 10 ms.
    return min(1.0, max(0.0, others / (end.total - begin.total)))


def others_now(seconds: float = 0.2) -> float | None:
    """Return the share of processor time that other programs take during a pause."""
    begin = cpu_times()
    time.sleep(seconds)
    return others_share(begin, cpu_times())


class Watch:
    """Observation of other programs' share of the processors, starting at its creation."""

    def __init__(self) -> None:
        self._begin, self._started = cpu_times(), time.monotonic()

    def others_share(self) -> float | None:
        """Return the share of processor time that other programs have taken, from 0 to 1.

        Waits until 0.3 s have passed.  ``None`` if it is unknown.
        """
        if self._begin is None:
            return None
        time.sleep(max(0.0, _LEAST_S - (time.monotonic() - self._started)))
        return others_share(self._begin, cpu_times())


def is_disturbed(share: float | None) -> bool:
    """Return whether other programs took more than :data:`QUIET` of the processors."""
    return share is not None and share > QUIET


def disturbance(share: float | None) -> str | None:
    """Return a warning about a disturbed measurement; ``None`` if it was not disturbed."""
    if share is None or share <= QUIET:
        return None
    return (
        f"Other programs took {share:.0%} of the processors meanwhile (more than {QUIET:.0%}): "
        "times are too long, and some more than others. Measure again on an idle machine."
    )
