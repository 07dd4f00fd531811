"""All analyses of a primary function, as findings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf

from tvm import tirx

from ...devices.target import TargetSpec
from ..profiling.record import Finding
from .accumulators import accumulator_findings
from .cache_lines import line_findings
from .coalescing import coalescing_findings
from .deadline import OutOfTimeError, stopped_at
from .divergence import divergence_findings
from .local_memory import bank_findings, local_memory_findings
from .lowered import Kernel, code_for_cpu, kernels_of
from .occupancy import occupancy_findings
from .parallelism import parallel_findings
from .products import product_findings
from .registers import register_findings
from .texture_locality import texture_findings
from .vector_lanes import lanes_findings
from .vector_width import vector_findings

_Analysis = Callable[[Kernel, TargetSpec], list[Finding]]

_ON_GPUS: tuple[_Analysis, ...] = (
    coalescing_findings,
    texture_findings,
    divergence_findings,
    bank_findings,
    local_memory_findings,
    vector_findings,
    register_findings,
    occupancy_findings,
    product_findings,
)
#: A work-item, or an iteration of a parallel loop, is a thread there.
_ON_CPUS: tuple[_Analysis, ...] = (
    line_findings,
    lanes_findings,
    accumulator_findings,
    parallel_findings,
    local_memory_findings,
    product_findings,
)

#: What costs less of a kernel's traffic, cycles or lanes is not worth a sentence.
_SMALL = 0.05


def findings(
    function: tirx.PrimFunc | Kernel, target: TargetSpec, *, until: float = inf
) -> list[Finding]:
    """What may cost time in the kernels of a scheduled primary function.

    Parameters
    ----------
    function
        A scheduled primary function, or one of its kernels.
    target
        What it is compiled for.
    until
        When to stop, as ``time.monotonic`` tells it.

    Returns
    -------
    list of Finding
        Kernel by kernel, the largest share first.  Accesses to a buffer from one line, which
        unrolling makes many of one, are one finding.

    Raises
    ------
    OutOfTimeError
        With what was found by then.
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
                raise OutOfTimeError(done + _worth(found)) from error
            done += _worth(found)
    return done


def _worth(found: Sequence[Finding]) -> list[Finding]:
    """The findings of a kernel that are worth a sentence, those that are alike as one."""
    alike: dict[tuple[str, int, str, str], list[Finding]] = {}
    for finding in found:
        key = finding.kind, finding.line, finding.access.split("[")[0], finding.remedy
        alike.setdefault(key, []).append(finding)
    merged = (_merged(group) for group in alike.values())
    worth = (finding for finding in merged if finding.share >= _SMALL)
    return sorted(worth, key=lambda finding: -finding.share)


def _merged(group: Sequence[Finding]) -> Finding:
    """One finding for some that are alike, in the words of the largest."""
    largest = max(group, key=lambda finding: finding.share)
    if len(group) == 1:
        return largest
    cost = {unit: sum(finding.cost[unit] for finding in group) for unit in largest.cost}
    share = min(1.0, sum(finding.share for finding in group))
    more = len(group) - 1
    also = f" {more} more of this line {'is' if more == 1 else 'are'} like it."
    return replace(largest, cost=cost, share=share, sentence=largest.sentence + also)
