"""Divergence: work-items of a wave that wait while others run another branch.

If the items of a wave disagree on a condition, the wave runs both sides one after the other; it
runs a loop as often as the item with the most iterations::

    if item % 2 == 0: ...             half of each wave waits, on either side
    if item // 64 % 2 == 0: ...       waves of 64 agree: nobody waits
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from ...devices.target import TargetSpec
from ...ir.evaluate import UnknownError, variables
from ..profiling.record import Finding
from .accesses import tirx_text
from .executions import times_of, waves_at
from .hardware import hardware_of
from .lowered import LoweredKernel, of_kernels


@dataclass(frozen=True)
class Divergence:
    """A condition, and how many work-items wait for others because of it."""

    kernel: str
    #: TVMScript of the condition.
    condition: str
    line: int
    #: Waves that evaluate the condition.
    waves: int
    #: Waves whose items disagree.
    split: int
    #: Waiting items, times the memory accesses that they wait for.
    masked_lanes: int
    #: Share of the lanes that wait, weighted with the accesses of each side, from 0 to 1.
    masked: float


@of_kernels
def divergence(kernel: LoweredKernel, target: TargetSpec) -> Iterator[Divergence]:
    """Find how many work-items wait at each condition and each loop of varying length.

    The unit of waiting is an access to memory of any kind; private memory stands for arithmetic,
    since it holds the operands.  Inner conditions come first.  If a condition depends on data, no
    item is assumed to wait.
    """
    for branch in kernel.branches:
        used = frozenset(variables([branch.condition]))
        reached = split = masked = running = 0.0
        with suppress(UnknownError):
            waves = waves_at(kernel, branch.context, hardware_of(target).wave, used)
            holds = waves.compute(branch.condition)[:, :, 0].astype(bool)
            there = waves.active.sum(axis=1)
            arms = [(waves.active & holds).sum(axis=1), (waves.active & ~holds).sum(axis=1)]
            reached = (there > 0).sum() * waves.weight
            split = ((arms[0] > 0) & (arms[1] > 0)).sum() * waves.weight
            for arm, accesses in zip(arms, branch.accesses, strict=True):
                running += (there[arm > 0]).sum() * accesses * waves.weight
                masked += (there - arm)[arm > 0].sum() * accesses * waves.weight
        yield Divergence(
            kernel=kernel.name,
            condition=tirx_text(branch.condition),
            line=kernel.line(*branch.sites),
            waves=round(reached),
            split=round(split),
            masked_lanes=round(masked),
            masked=float(masked / running) if running else 0.0,
        )


def divergence_findings(kernel: LoweredKernel, target: TargetSpec) -> Iterator[Finding]:
    """Find conditions that leave a considerable share of a kernel's lanes idle."""
    found = divergence(kernel, target)
    lanes = times_of(kernel, kernel.sites) + sum(one.masked_lanes for one in found)
    for one in found:
        if one.masked_lanes:
            yield Finding(
                *(kernel.name, "divergence", one.condition, one.line),
                # An access of a wave takes a cycle.
                {"cycles": one.masked_lanes / hardware_of(target).wave},
                one.masked_lanes / max(1, lanes),
                f"Work-items of {one.split:,} of {one.waves:,} waves do not agree on "
                f"{one.condition}: {one.masked:.0%} of the lanes wait there.",
                "Let whole waves agree: choose by work-group or by a loop's variable, pad the "
                "tensor to whole groups, or compute both sides and select.",
            )
