"""Findings in a kernel's machine code: costs of time, and what to try."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ...devices.gpus import Gpu
from ..profiling.record import Finding
from .record import KernelCode

#: Waves that each shader core should have, and share of their lanes that should have an item.
WAVES_A_CORE, LANES_FILLED = 2, 0.75
#: Fewer waves at a time hide less of the time that memory takes.
_FEW_WAVES = 4
#: Shares of the hot loop's issue slots: at most idle, and at least multiply-adds.
_IDLE, _MULTIPLY_ADDS = 0.10, 0.45


def findings(kernel: KernelCode, gpu: Gpu) -> list[Finding]:
    """Find what may cost time in the machine code of a kernel, the largest share first."""
    return sorted(_findings(kernel, gpu), key=lambda finding: -finding.share)


def all_findings(kernels: Iterable[KernelCode], gpu: Gpu) -> tuple[Finding, ...]:
    """Return the findings of all kernels, kernel by kernel."""
    return tuple(finding for kernel in kernels for finding in findings(kernel, gpu))


def _findings(kernel: KernelCode, gpu: Gpu) -> Iterator[Finding]:
    def cost(kind: str, slots: float, share: float, sentence: str, remedy: str) -> Finding:
        return Finding(kernel.kernel, kind, "", 0, {"slots": slots}, share, sentence, remedy)

    whole, hot = kernel.whole, kernel.hot
    if kernel.spills:
        yield cost(
            "registers", kernel.spills, min(1.0, kernel.spills / whole.issue),
            f"{kernel.spills} values do not fit the {kernel.registers} registers and go through "
            "memory.",
            "A smaller register tile: fewer outputs a work-item (tile_c, tile_h, tile_w).",
        )  # fmt: skip
    if kernel.waves < _FEW_WAVES and whole.fetches:
        yield cost(
            "occupancy", hot.fetches, 1 - kernel.waves / _FEW_WAVES,
            f"A shader core holds {kernel.waves} of these waves at a time, as each work-item has "
            f"{kernel.registers} registers: little else runs while one waits for memory.",
            "A smaller register tile, or sums in half precision (accumulate).",
        )  # fmt: skip
    filled = kernel.lanes_filled
    if filled is not None and filled < LANES_FILLED:
        yield cost(
            "occupancy", whole.issue * (1 - filled), 1 - filled,
            f"Work-groups of {kernel.group_size} fill {filled:.0%} of the lanes of their waves of "
            f"{kernel.wave}.",
            f"Work-groups of a multiple of {kernel.wave}.",
        )  # fmt: skip
    waves = kernel.launched_waves
    if gpu.cores is not None and 0 < waves < WAVES_A_CORE * gpu.cores:
        yield cost(
            "parallel", whole.issue, 1 - waves / (WAVES_A_CORE * gpu.cores),
            f"A launch is {waves} waves for {gpu.cores} shader cores.",
            "Smaller tiles, or sums that several work-items share.",
        )  # fmt: skip
    if hot.issue and hot.idle > _IDLE * hot.issue:
        yield cost(
            "latency", hot.idle, hot.idle / hot.issue,
            f"{hot.idle} of the {hot.issue} issue slots of its hottest code do nothing but wait "
            "for the instruction before.",
            "More independent work a work-item: a larger tile, or more of the loop unrolled.",
        )  # fmt: skip
    share = hot.multiply_add_share
    if hot.multiply_adds and share < _MULTIPLY_ADDS:
        yield cost(
            "arithmetic", hot.issue - hot.multiply_adds, 1 - share,
            f"{share:.0%} of the issue slots of its hottest code are multiply-adds; the others "
            f"compute addresses and conditions, convert ({hot.conversions}) or wait ({hot.idle}).",
            "Fewer conditions at borders, a larger tile, indices that step by constants.",
        )  # fmt: skip
