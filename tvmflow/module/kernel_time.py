"""How long a kernel took, whatever ran it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from ..errors import DeviceError


@dataclass(frozen=True)
class KernelTime:
    """How long one launch of a run took.

    Parameters
    ----------
    kernel
        The kernel's name.
    median_us, p10_us, p90_us
        Over the measured runs, in microseconds.
    clock
        ``"device"``: the device's profiling events.  ``"host"``: measured around
        the call (including the launch and the waiting for a device).
    gap_us
        From the end of the launch before it to its begin, the median; 0 of the first one.
    global_size, local_size
        Work-items of the launch and of a work-group; empty when not launched so.
    """

    kernel: str
    median_us: float
    p10_us: float
    p90_us: float
    clock: str
    gap_us: float
    global_size: tuple[int, ...] = ()
    local_size: tuple[int, ...] = ()


def kernel_times(runs: Sequence[Sequence[Mapping[str, Any]]], clock: str) -> list[KernelTime]:
    """Every launch of a run, from its times in several runs of the same launches.

    Parameters
    ----------
    runs
        At least one.  A launch has ``kernel``, ``start_us`` and ``us``, and where it has sizes
        ``global`` and ``local``.
    clock
        As of `KernelTime`.

    Raises
    ------
    DeviceError
        If the runs are not of the same launches.
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


def _gap_us(run: Sequence[Mapping[str, Any]], position: int) -> float:
    """From the end of the launch before one to its begin, in a run."""
    if position == 0:
        return 0.0
    before, launch = run[position - 1], run[position]
    return max(0.0, float(launch["start_us"] - before["start_us"] - before["us"]))
