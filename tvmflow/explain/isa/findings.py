"""Findings in a kernel's machine code: costs of time, and what to try."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ...devices.gpus import Gpu
from ..profiling.record import Finding
from .record import KernelCode

#: Waves that each shader core should have, and share of their lanes that should have an item.
WAVES_A_CORE, LANES_FILLED = 2, 0.75
#: Fewer waves at a time hide less of the time that memory takes.
_FEW_WAVES = 4
#: Shares of the hot loop's issue slots: at most idle, and at least multiply-adds.
_IDLE, _MULTIPLY_ADDS = 0.10, 0.45

_Rule = Callable[[KernelCode, Gpu], Finding | None]


def findings(kernel: KernelCode, gpu: Gpu) -> list[Finding]:
    """Find what may cost time in the machine code of a kernel, the largest share first."""
    found = (rule(kernel, gpu) for rule in _RULES)
    return sorted(filter(None, found), key=lambda finding: -finding.share)


def all_findings(kernels: Iterable[KernelCode], gpu: Gpu) -> tuple[Finding, ...]:
    """Return the findings of all kernels, kernel by kernel."""
    return tuple(finding for kernel in kernels for finding in findings(kernel, gpu))


def _finding(
    kernel: KernelCode, kind: str, slots: float, share: float, sentence: str, remedy: str
) -> Finding:
    return Finding(kernel.kernel, kind, "", 0, {"slots": slots}, share, sentence, remedy)


def _spills(kernel: KernelCode, _gpu: Gpu) -> Finding | None:
    if not kernel.spills:
        return None
    return _finding(
        kernel, "registers", kernel.spills, min(1.0, kernel.spills / kernel.whole.issue),
        f"{kernel.spills} values do not fit the {kernel.registers} registers and go through "
        "memory.",
        "A smaller register tile: fewer outputs a work-item (tile_c, tile_h, tile_w).",
    )  # fmt: skip


def _few_waves(kernel: KernelCode, _gpu: Gpu) -> Finding | None:
    if kernel.waves >= _FEW_WAVES or not kernel.whole.fetches:
        return None
    return _finding(
        kernel, "occupancy", kernel.hot.fetches, 1 - kernel.waves / _FEW_WAVES,
        f"A shader core holds {kernel.waves} of these waves at a time, as each work-item has "
        f"{kernel.registers} registers: little else runs while one waits for memory.",
        "A smaller register tile, or sums in half precision (accumulate).",
    )  # fmt: skip


def _lanes(kernel: KernelCode, _gpu: Gpu) -> Finding | None:
    filled = kernel.lanes_filled
    if filled is None or filled >= LANES_FILLED:
        return None
    return _finding(
        kernel, "occupancy", kernel.whole.issue * (1 - filled), 1 - filled,
        f"Work-groups of {kernel.group_size} fill {filled:.0%} of the lanes of their waves of "
        f"{kernel.wave}.",
        f"Work-groups of a multiple of {kernel.wave}.",
    )  # fmt: skip


def _parallelism(kernel: KernelCode, gpu: Gpu) -> Finding | None:
    waves = kernel.launched_waves
    if gpu.cores is None or not waves or waves >= WAVES_A_CORE * gpu.cores:
        return None
    return _finding(
        kernel, "parallel", kernel.whole.issue, 1 - waves / (WAVES_A_CORE * gpu.cores),
        f"A launch is {waves} waves for {gpu.cores} shader cores.",
        "Smaller tiles, or sums that several work-items share.",
    )  # fmt: skip


def _idle(kernel: KernelCode, _gpu: Gpu) -> Finding | None:
    hot = kernel.hot
    if not hot.issue or hot.idle <= _IDLE * hot.issue:
        return None
    return _finding(
        kernel, "latency", hot.idle, hot.idle / hot.issue,
        f"{hot.idle} of the {hot.issue} issue slots of its hottest code do nothing but wait for "
        "the instruction before.",
        "More independent work a work-item: a larger tile, or more of the loop unrolled.",
    )  # fmt: skip


def _multiply_adds(kernel: KernelCode, _gpu: Gpu) -> Finding | None:
    hot = kernel.hot
    share = hot.multiply_add_share
    if not hot.multiply_adds or share >= _MULTIPLY_ADDS:
        return None
    return _finding(
        kernel, "arithmetic", hot.issue - hot.multiply_adds, 1 - share,
        f"{share:.0%} of the issue slots of its hottest code are multiply-adds; the others "
        f"compute addresses and conditions, convert ({hot.conversions}) or wait ({hot.idle}).",
        "Fewer conditions at borders, a larger tile, indices that step by constants.",
    )  # fmt: skip


_RULES: tuple[_Rule, ...] = (_spills, _few_waves, _lanes, _parallelism, _idle, _multiply_adds)
