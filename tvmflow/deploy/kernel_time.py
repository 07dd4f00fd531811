"""How long a kernel took, whatever ran it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class KernelTime:
    """How long one launch of a run took.

    Parameters
    ----------
    kernel
        The kernel's name.
    median_us, p90_us
        Over the measured runs, in microseconds.
    clock
        ``"device"``: the device's profiling events.  ``"host"``: measured around
        the call (including the launch and the waiting for a device).
    global_size, local_size
        Work-items of the launch and of a work-group; empty when not launched so.
    """

    kernel: str
    median_us: float
    p90_us: float
    clock: str
    global_size: tuple[int, ...] = ()
    local_size: tuple[int, ...] = ()


def p90(ordered: list[float]) -> float:
    """The smallest value that is not exceeded by nine tenths of them."""
    return ordered[-(-len(ordered) * 9 // 10) - 1]
