"""How long a kernel took, whatever ran it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any


@dataclass(frozen=True)
class KernelTime:
    """How long one launch of a run took.

    Parameters
    ----------
    kernel
        The kernel's name.
    median_us, p90_us, p10_us
        Over the measured runs, in microseconds.
    clock
        ``"device"``: the device's profiling events.  ``"host"``: measured around
        the call (including the launch and the waiting for a device).
    global_size, local_size
        Work-items of the launch and of a work-group; empty when not launched so.
    gap_us
        From the end of the launch before it to its begin; ``None`` where nothing tells.
    """

    kernel: str
    median_us: float
    p90_us: float
    clock: str
    global_size: tuple[int, ...] = ()
    local_size: tuple[int, ...] = ()
    p10_us: float = 0.0
    gap_us: float | None = None

    @classmethod
    def over(
        cls,
        kernel: str,
        us: Sequence[float],
        clock: str,
        global_size: tuple[int, ...] = (),
        local_size: tuple[int, ...] = (),
        *,
        gaps_us: Sequence[float] = (),
    ) -> KernelTime:
        """One launch from its times in several runs."""
        ordered = sorted(us)
        return cls(
            kernel,
            median(ordered),
            p90(ordered),
            clock,
            global_size,
            local_size,
            p10_us=-p90([-value for value in reversed(ordered)]),
            gap_us=median(gaps_us) if gaps_us else None,
        )


def gap_us(run: Sequence[Mapping[str, Any]], position: int) -> float:
    """From the end of the launch before one to its begin, in a run."""
    if position == 0:
        return 0.0
    before, launch = run[position - 1], run[position]
    return max(0.0, float(launch["start_us"] - before["start_us"] - before["us"]))


def p90(ordered: list[float]) -> float:
    """The smallest value that is not exceeded by nine tenths of them."""
    return ordered[-(-len(ordered) * 9 // 10) - 1]
