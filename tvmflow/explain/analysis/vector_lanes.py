"""Lanes of vectors on CPUs: how many numbers are computed at a time.

Compilers make vectors of an innermost loop themselves where its iterations do not depend on each
other and access neighbours; not where they add to one number of floating point, whose rounding
they would change, and seldom where neighbours are far apart::

    for i, j, k:                 one number at a time: each k waits for the one before it, and
        c[i, j] += a[i, k] * b[k, j]          b's are a row apart
    for i, k, j:                 the compiler's vectors: neighbouring j do not depend on each other
        c[i, j] += a[i, k] * b[k, j]

Drivers of OpenCL do so. On ``llvm`` only vectors that are written out are vectors: LLVM's
vectoriser of loops is off (:mod:`tvmflow.devices.target`).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from ...devices.target import TargetSpec
from ..profiling.record import Finding
from .counting import executions
from .hardware import hardware_of
from .loops import Statement, axes_of, name_of, statements, stride
from .lowered import Kernel, code_for_cpu

#: Bytes of a number in arithmetic: smaller ones are widened.
_WORD = 4
#: Shorter loops are not made vectors.
_SHORT = 8


@dataclass(frozen=True)
class VectorLanes:
    """A statement, and how many numbers it computes at a time."""

    kernel: str
    #: What it writes: buffer and index as TVMScript.
    text: str
    line: int
    #: Numbers that it computes at a time, and that a vector has.
    lanes: int
    possible: int
    #: How often it runs.
    executions: int
    #: The innermost loop around it; empty if there is none.
    loop: str
    #: Whether the compiler can make vectors of this loop's iterations.
    by_compiler: bool
    #: Why not; empty if it can.
    obstacle: str
    #: The innermost loop whose iterations write neighbours; empty if there is none.
    neighbours: str


def vector_lanes(function: tirx.PrimFunc | Kernel, target: TargetSpec) -> list[VectorLanes]:
    """Find how many lanes of its vectors a CPU uses, statement by statement.

    Parameters
    ----------
    function
        A scheduled primary function, or one of its kernels.
    target
        What it is compiled for.

    Returns
    -------
    list of VectorLanes
        In the order of the code; empty for GPUs.
    """
    width = hardware_of(target).vector_bytes
    return [
        _lanes(kernel, statement, width, written_out=target.kind == "llvm")
        for kernel in code_for_cpu(function, target)
        for statement in statements(kernel)
    ]


def _lanes(kernel: Kernel, statement: Statement, width: int, *, written_out: bool) -> VectorLanes:
    """What a statement uses; ``written_out`` where compilers make no vectors of loops."""
    store = statement.store
    axes = axes_of(kernel, store)
    lanes = statement.numbers
    possible = max(lanes, width // max(_WORD, store.element_bytes * store.lanes // lanes))
    loop, obstacle = "", "there is no loop around it"
    if axes:
        var, extent = axes[-1]
        loop, obstacle = name_of(var), _obstacle(kernel, statement, var, extent)
        if written_out:
            obstacle = obstacle or "only vectors that are written out are vectors on llvm"
    runs = (name_of(v) for v, _ in reversed(axes) if stride(kernel, store, v) == store.lanes)
    neighbours = next(runs, "")
    return VectorLanes(
        kernel.name,
        str(store),
        # A sum is first written where it begins.
        kernel.line(
            *(load for load in statement.loads if load.buffer.same_as(store.buffer)), store
        ),
        lanes,
        possible,
        executions(kernel, store.place).times,
        loop,
        not obstacle,
        obstacle,
        neighbours,
    )


def _obstacle(kernel: Kernel, statement: Statement, var: Any, extent: int) -> str:
    """Why a compiler makes no vectors of the iterations of a loop."""
    name = name_of(var)
    if extent < _SHORT:
        return f"the innermost loop {name} has only {extent} iterations"
    if var in statement.store.place.variables:
        return ""  # Compilers mask lanes, or split the loop.
    store = statement.store
    if stride(kernel, store, var) == 0 and str(store.buffer.dtype).startswith("float"):
        return f"all iterations of the innermost loop {name} add to one number"
    for site in (store, *statement.loads):
        step = stride(kernel, site, var)
        if step not in (0, site.lanes):
            far = f"{step:,} elements" if step else "no fixed distance"
            gathered = ", which a vector gathers one by one" if site.lanes == 1 else ""
            return (
                f"iterations of the innermost loop {name} access {site.name} {far} apart{gathered}"
            )
    return "compilers leave vectors in the code as long as they are" if store.lanes > 1 else ""


def lanes_findings(function: tirx.PrimFunc | Kernel, target: TargetSpec) -> list[Finding]:
    """Statements that use few lanes of a vector."""
    found = vector_lanes(function, target)
    totals: Counter[str] = Counter()
    for one in found:
        totals[one.kernel] += one.executions
    findings = []
    for one in found:
        saved = one.executions * (1 - one.lanes / one.possible)
        # What no loop is around runs once.
        if one.by_compiler or not saved or not one.loop:
            continue
        buffer = one.text.split("[")[0]
        findings.append(
            Finding(
                one.kernel,
                "vector-width",
                one.text,
                one.line,
                # A step of a statement is a cycle, about.
                {"cycles": float(saved)},
                saved / totals[one.kernel],
                f"{buffer} is computed {one.lanes} number{'s' * (one.lanes > 1)} at a time, "
                f"{one.executions:,} times, in vectors of {one.possible}: {one.obstacle}.",
                _remedy(one, buffer),
            )
        )
    return findings


def _remedy(one: VectorLanes, buffer: str) -> str:
    if not one.neighbours:
        return f"Change the layout of {buffer} so that what is computed alike lies side by side."
    if one.lanes > 1:
        return (
            f"Iterations of {one.neighbours} write neighbours: make vectors of {one.possible} of "
            "them, padded where the tensor ends sooner."
        )
    if one.neighbours == one.loop:
        return f"Vectorize {one.loop}, split by {one.possible}; copy what it reads side by side."
    return (
        f"Split {one.neighbours}, whose iterations write neighbours, by {one.possible}, move the "
        "inner part innermost, and vectorize it."
    )
