"""Times of single kernels, from the device's clock or measured around each call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from ..errors import DeviceError
from ..runtime.json_types import JsonMapping

#: A launch as a runtime reports it: ``kernel``, ``start_us``, ``us`` and, for OpenCL, the sizes
#: ``global`` and ``local``.
Launch = JsonMapping


@dataclass(frozen=True)
class KernelTime:
    """Times of one kernel launch, over several runs of the network."""

    kernel: str
    median_us: float  #: Median over the measured runs, in microseconds, as the next ones.
    p10_us: float
    p90_us: float
    #: ``"device"``: from the device's profiling events.  ``"host"``: measured around the call,
    #: which includes the launch and the wait for the device.
    clock: str
    #: Median time from the end of the launch before it to its start; 0 for the first launch.
    gap_us: float
    #: Work-items of the launch and of a work-group; empty where a launch has none.
    global_size: tuple[int, ...] = ()
    local_size: tuple[int, ...] = ()


def kernel_times(runs: Sequence[Sequence[Launch]], clock: str) -> list[KernelTime]:
    """Return the times of each launch of a network, measured in one or more runs.

    Raises `DeviceError` if the runs have different launches.
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
                # The smallest time that nine tenths of the runs do not exceed.
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
