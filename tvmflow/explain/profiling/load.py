"""How much of a machine's processors other programs take while something is measured."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple

_STAT = Path("/proc/stat")


class CpuTimes(NamedTuple):
    """Seconds since the machine started, summed over its processors."""

    busy: float
    total: float
    #: Of this process and of those that it waited for.
    own: float


def cpu_times() -> CpuTimes | None:
    """The counters of Linux; ``None`` on systems without them."""
    try:
        name, *ticks = _STAT.read_text(encoding="ascii").partition("\n")[0].split()
        # user, nice, system, idle, iowait, irq, softirq, steal; guests are in user and nice.
        times = [int(tick) / os.sysconf("SC_CLK_TCK") for tick in ticks[:8]]
    except (OSError, ValueError):
        return None
    if name != "cpu" or len(times) < 8:
        return None
    return CpuTimes(sum(times) - times[3] - times[4], sum(times), sum(os.times()[:4]))


def others_share(begin: CpuTimes | None, end: CpuTimes | None) -> float | None:
    """Part of all processors' time that other programs took in between, from 0 to 1.

    What a hypervisor gave to other machines is in it.  ``None`` where it is not known, and where
    no time passed.
    """
    if begin is None or end is None or end.total <= begin.total:
        return None
    others = (end.busy - begin.busy) - (end.own - begin.own)
    # The counters have steps of 10 ms.
    return min(1.0, max(0.0, others / (end.total - begin.total)))


def others_now(seconds: float = 0.2) -> float | None:
    """Part of all processors' time that other programs take while this waits."""
    begin = cpu_times()
    time.sleep(seconds)
    return others_share(begin, cpu_times())
