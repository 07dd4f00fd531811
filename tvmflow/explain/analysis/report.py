"""Findings of all analyses of primary functions and of a network's graph."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from math import inf

from tvm import tirx

from ...devices.target import TargetSpec
from ...graph.missed_fusion import Fusion
from ...module.functions import tir_text
from ...runtime.json_types import JsonMapping
from ..grouping import grouped
from ..profiling.record import Finding, KernelLaunch
from .cache_lines import line_findings
from .cpu_loops import accumulator_findings, lanes_findings, parallel_findings
from .deadline import OutOfTimeError, stopped_at
from .divergence import divergence_findings
from .global_memory import coalescing_findings, vector_findings
from .local_memory import bank_findings, local_memory_findings
from .lowered import Analysed, LoweredKernel, code_for_cpu, kernels_of, line_of
from .occupancy import occupancy_findings, register_findings
from .products import product_findings
from .texture_locality import texture_findings

_Analysis = Callable[[LoweredKernel, TargetSpec], Iterable[Finding]]

_ON_GPUS: tuple[_Analysis, ...] = (
    *(coalescing_findings, texture_findings, divergence_findings, bank_findings),
    *(local_memory_findings, vector_findings, register_findings, occupancy_findings),
    product_findings,
)
#: Analyses for CPUs, where a work-item or an iteration of a parallel loop runs in a thread.
_ON_CPUS: tuple[_Analysis, ...] = (
    *(line_findings, lanes_findings, accumulator_findings, parallel_findings),
    *(local_memory_findings, product_findings),
)

#: Smallest share of a kernel's traffic, cycles or lanes that is reported.
_SMALL = 0.05
#: Time limit for the analysis of a module.  It suffices for networks of hundreds of layers, many of
#: which are calls of one function.
BUDGET_S = 30.0


def findings(function: Analysed, target: TargetSpec, *, until: float = inf) -> list[Finding]:
    """Find what may cost time in the kernels of a scheduled primary function, or in one kernel.

    Findings are in the order of kernels, the largest share first.  Accesses to a buffer in one
    line, such as unrolled copies, are merged into one finding.

    `OutOfTimeError`, with the findings so far, if the analysis takes longer than ``until``, a time
    of ``time.monotonic``.
    """
    is_cpu = target.device.is_cpu
    analyses = _ON_CPUS if is_cpu else _ON_GPUS
    done: list[Finding] = []
    with stopped_at(until):
        for kernel in (code_for_cpu if is_cpu else kernels_of)(function, target):
            found: list[Finding] = []
            try:
                for analysis in analyses:
                    found += analysis(kernel, target)
            except OutOfTimeError as error:
                raise OutOfTimeError(done + _reported(found)) from error
            done += _reported(found)
    return done


def _reported(found: Sequence[Finding]) -> list[Finding]:
    """Return the findings of a kernel that are worth reporting, with similar ones merged."""
    alike = grouped(found, lambda f: (f.kind, f.line, f.access.split("[")[0], f.remedy))
    merged = map(_merged, alike.values())
    worth = (finding for finding in merged if finding.share >= _SMALL)
    return sorted(worth, key=lambda finding: -finding.share)


def _merged(group: Sequence[Finding]) -> Finding:
    """Merge similar findings into one with the sentence of the largest."""
    largest = max(group, key=lambda finding: finding.share)
    if len(group) == 1:
        return largest
    cost = {unit: sum(finding.cost[unit] for finding in group) for unit in largest.cost}
    share = min(1.0, sum(finding.share for finding in group))
    more = len(group) - 1
    also = f" {more} more of this line {'is' if more == 1 else 'are'} like it."
    return replace(largest, cost=cost, share=share, sentence=largest.sentence + also)


def fusion_finding(pair: Fusion) -> Finding:
    """Make a finding of the function that reads the tensor between a pair."""
    return Finding(
        *(pair.consumer, "fusion", pair.tensor, 0),
        {"bytes": float(pair.saved_bytes)},
        pair.share,
        f"{pair.producer} writes {pair.tensor} only for {pair.consumer}: "
        f"{pair.saved_bytes:,} bytes are moved that need not be.",
        "Let one function compute both: give the primary function an op_pattern that fusion "
        "takes, or write both as one operator.",
    )


def launch_findings(
    functions: Mapping[str, tirx.PrimFunc],
    kernels: Sequence[KernelLaunch],
    target: TargetSpec,
    notes: list[str],
    *,
    budget_s: float = BUDGET_S,
) -> tuple[Finding, ...]:
    """Analyse the launched functions, those with the most time first.

    ``notes`` gets a sentence for each function that was not analysed.
    """
    times: dict[str, float] = defaultdict(float)
    for kernel in kernels:
        if kernel.function in functions:
            times[kernel.function] += kernel.median_us
    found: list[Finding] = []
    total_us = left_us = sum(times.values())
    until = time.monotonic() + budget_s
    for function, us in sorted(times.items(), key=lambda item: -item[1]):
        try:
            found += findings(functions[function], target, until=until)
        except OutOfTimeError as error:
            found += error.found
            left = left_us / total_us if total_us else 1.0
            notes.append(
                f"After {budget_s:.0f} s of analysis, functions that take {left:.1%} of the "
                f"kernels' time have no findings, or not all: {function} is the first."
            )
            break
        except Exception as error:  # noqa: BLE001 (measurements must survive a failed analysis)
            notes.append(f"{function} could not be analysed: {error}")
        left_us -= us
    return tuple(found)


def missed_fusion_findings(
    left: Iterable[JsonMapping],
    kernels: Sequence[KernelLaunch],
    functions: Mapping[str, tirx.PrimFunc],
) -> tuple[Finding, ...]:
    """Make findings of the fusible pairs in a module's metadata, for the launched kernels."""
    found = []
    for entry in left:
        pair = Fusion(**{field.name: entry[field.name] for field in fields(Fusion)})
        calls = [kernel for kernel in kernels if kernel.function == pair.consumer]
        if not calls:
            continue
        # Findings have a share of all launches of a kernel, but only one of them reads the tensor.
        launches = [kernel for kernel in calls if kernel.name == calls[0].name]
        moved = sum((k.bytes_read or 0) + (k.bytes_written or 0) for k in launches)
        share = min(pair.saved_bytes / moved, 1 / len(launches)) if moved else pair.share
        text = tir_text(functions[pair.consumer]) if pair.consumer in functions else ""
        line = line_of(text, pair.parameter, False) if pair.parameter else 0
        found.append(replace(fusion_finding(pair), kernel=calls[0].name, share=share, line=line))
    return tuple(found)
