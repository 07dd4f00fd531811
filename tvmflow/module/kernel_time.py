"""Times of single kernels: from the device's own clock, or from around each call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from ..errors import DeviceError
from ..runtime.json_types import JsonMapping

#: A launch as a runtime reports it: ``kernel``, ``start_us`` and ``us``, and where it has sizes
#: ``global`` and ``local``.
Launch = JsonMapping


@dataclass(frozen=True)
class KernelTime:
    """Times of one launch of a run."""

    kernel: str
    median_us: float  #: Over the measured runs, in microseconds, as are the next ones.
    p10_us: float
    p90_us: float
    #: ``"device"``: the device's profiling events.  ``"host"``: measured around the call (including
    #: the launch and the waiting for a device).
    clock: str
    #: From the end of the launch before it to its begin, the median; 0 of the first one.
    gap_us: float
    #: Work-items of the launch and of a work-group; empty when not launched so.
    global_size: tuple[int, ...] = ()
    local_size: tuple[int, ...] = ()


def kernel_times(runs: Sequence[Sequence[Launch]], clock: str) -> list[KernelTime]:
    """Every launch of a run, from its times in several runs (at least one) of the same launches.

    A `DeviceError` says that they are not of the same ones.
    """
    names = [[launch["kernel"] for launch in run] for run in runs]
    if any(run != names[0] for run in names):
        raise DeviceError(
            f"Measuring kernels failed: {len(runs)} runs were expected to launch the same kernels, "
            f"but they launched {sum(map(len, names))} in different orders.",
            remedy="Measure while no other thread uses the device.",
        )
    times = []
    for position, launch in enumerate(runs[0]):
        us = sorted(float(run[position]["us"]) for run in runs)
        times.append(
            KernelTime(
                launch["kernel"],
                median_us=median(us),
                p10_us=us[len(us) // 10],
                # The smallest that nine tenths of them do not exceed.
                p90_us=us[-(-len(us) * 9 // 10) - 1],
                clock=clock,
                gap_us=median(_gap_us(run, position) for run in runs),
                global_size=tuple(launch.get("global", ())),
                local_size=tuple(launch.get("local", ())),
            )
        )
    return times


def _gap_us(run: Sequence[Launch], position: int) -> float:
    if position == 0:
        return 0.0
    before, launch = run[position - 1], run[position]
    return max(0.0, float(launch["start_us"] - before["start_us"] - before["us"]))
