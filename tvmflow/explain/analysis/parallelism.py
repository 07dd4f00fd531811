"""Loops over cores on CPUs: how much of a function's work one core does while others wait."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from tvm import tirx

from ...devices.target import TargetSpec
from ..profiling.record import Finding
from .counting import executions
from .loops import Statement, axes_of, name_of, statements
from .lowered import Kernel, code_for_cpu

#: Statements that run less often end before other cores have begun.
_SMALL = 1 << 14


@dataclass(frozen=True)
class LoopNest:
    """An outermost loop with all that is in it, and how many cores it occupies."""

    kernel: str
    #: The statement that runs most often: what it writes, as TVMScript.
    text: str
    line: int
    #: The outermost loop; empty for work-items without one.
    loop: str
    #: How often statements run in it.
    executions: int
    #: Parts that cores can have, iterations of parallel loops or work-groups; 1 is one core.
    parts: int


def loop_nests(function: tirx.PrimFunc | Kernel, target: TargetSpec) -> list[LoopNest]:
    """Find into how many parts the work of each outermost loop can be divided.

    Parameters
    ----------
    function
        A scheduled primary function, or one of its kernels.
    target
        What it is compiled for.

    Returns
    -------
    list of LoopNest
        In the order of the code; empty for GPUs.
    """
    return [nest for kernel in code_for_cpu(function, target) for nest in _nests(kernel, target)]


def _nests(kernel: Kernel, target: TargetSpec) -> list[LoopNest]:
    nests: dict[Any, list[Statement]] = {}
    for statement in statements(kernel):
        loops = statement.store.place.loops
        outermost = loops[0][0] if loops and not target.is_gpu_kernel else None
        nests.setdefault(outermost, []).append(statement)
    return [_nest(kernel, outermost, inside) for outermost, inside in nests.items()]


def _nest(kernel: Kernel, outermost: Any, inside: list[Statement]) -> LoopNest:
    times = [executions(kernel, statement.store.place).times for statement in inside]
    most = inside[times.index(max(times))].store
    parts = prod(n for var, n in axes_of(kernel, most) if var in kernel.parallel)
    return LoopNest(
        kernel.name,
        str(most),
        kernel.line(most),
        "" if outermost is None else name_of(outermost),
        sum(times),
        parts,
    )


def parallel_findings(function: tirx.PrimFunc | Kernel, target: TargetSpec) -> list[Finding]:
    """Work that one core does."""
    nests = loop_nests(function, target)
    findings = []
    for nest in nests:
        total = sum(other.executions for other in nests if other.kernel == nest.kernel)
        if nest.parts > 1 or nest.executions < _SMALL:
            continue
        buffer = nest.text.split("[")[0]
        findings.append(
            Finding(
                nest.kernel,
                "parallel",
                f"for {nest.loop}" if nest.loop else nest.kernel,
                nest.line,
                {"cycles": float(nest.executions)},
                nest.executions / total,
                f"One core computes {buffer}, in {nest.executions:,} steps; the others wait.",
                f"Make the outermost loop {nest.loop} parallel, or a loop of results, not of "
                "sums, that is moved there."
                if nest.loop
                else "Bind the outermost loop of results to blockIdx.x: work-groups are spread "
                "over cores.",
            )
        )
    return findings
