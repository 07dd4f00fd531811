"""Sums in flight on CPUs: how many additions a core has to do that do not wait for each other.

An addition takes some cycles, and a core begins more than one in each: as long as one sum is
added to in turn, most of its adders' time is lost::

    for k: total += a[k] * b[k]                   each step waits for the one before it: 4 cycles
    for k: total[0..7] += a[k] * b[k, 0..7]       8 sums in 8 registers: two in each cycle

Sums that an inner loop goes through are in memory, and are loaded and stored at each step::

    for k: for j: total[j] += a[k] * b[k, j]
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from math import ceil, prod
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Call, Op

from ...codegen.dot_products import NAME as DOT
from ...devices.target import TargetSpec
from ..profiling.record import Finding
from .counting import executions
from .hardware import CORE, Hardware, hardware_of
from .loops import Statement, axes_of, name_of, statements
from .lowered import Kernel, code_for_cpu
from .sites import Site, buffer_bytes

#: Additions to a sum without a pause, at least: cores begin the next sum before a shorter one ends.
_LONG = 64
#: Losses that are a smaller part of the cycles are no finding.
_LITTLE = 0.2
_WORD = 4
#: As many sums do not stand in the code for another reason than that a tile is unrolled.
_MANY = 32


@dataclass(frozen=True)
class Accumulators:
    """Sums of an innermost loop, and how many of them there are."""

    kernel: str
    #: One of them: buffer and index as TVMScript.
    text: str
    line: int
    #: The innermost loop.
    loop: str
    #: Sums that are added to in turn; those of a vector are one.
    in_flight: int
    #: Vectors that they take.
    vectors: int
    #: Additions to each, one after the other.
    length: int
    #: All additions.
    additions: int
    #: Cycles that they take: each waits for the one before it, or for an adder.
    cycles: int
    #: Cycles with all adders busy.
    least_cycles: int
    #: Whether each addition loads and stores its sum: they are too many for registers.
    in_memory: bool


def accumulators(function: tirx.PrimFunc | Kernel, target: TargetSpec) -> list[Accumulators]:
    """Find how many sums each innermost loop adds to.

    Parameters
    ----------
    function
        A scheduled primary function, or one of its kernels.
    target
        What it is compiled for.

    Returns
    -------
    list of Accumulators
        One for each innermost loop with sums that are added to at least 64 times in a row, in
        the order of the code; empty for GPUs.
    """
    hardware = hardware_of(target)
    found = []
    for kernel in code_for_cpu(function, target):
        bodies: dict[tuple[int, ...], list[Statement]] = {}
        begun: dict[Any, set[Any]] = {}
        for statement in statements(kernel):
            store = statement.store
            if not statement.sums_up:
                begun.setdefault(store.buffer, set()).update(_loops_of(kernel, store))
            elif _waits(statement):
                loops = tuple(id(var) for var, _ in store.place.loops)
                bodies.setdefault(loops, []).append(statement)
        for body in bodies.values():
            one = _accumulators(kernel, body, begun.get(body[0].store.buffer, set()), hardware)
            if one is not None:
                found.append(one)
    return found


def _loops_of(kernel: Kernel, store: Site) -> set[Any]:
    """Loops in whose iterations something is stored, each time."""
    return {var for var, _ in axes_of(kernel, store)} - store.place.variables


def _waits(statement: Statement) -> bool:
    """Whether additions take more than a cycle: those of whole numbers do not."""
    if str(statement.store.buffer.dtype).startswith("float"):
        return True
    value = statement.store.value
    # Without vectors, dot products are additions of whole numbers.
    return (
        statement.numbers > 1
        and isinstance(value, Call)
        and isinstance(value.op, Op)
        and value.op.name == DOT
    )


def _accumulators(
    kernel: Kernel, body: Sequence[Statement], begun: set[Any], hardware: Hardware
) -> Accumulators | None:
    """The sums of a loop's body, which begin anew in each iteration of some loops."""
    first = body[0].store
    axes = axes_of(kernel, first)
    sums: list[Any] = []
    for statement in body:
        store = statement.store
        if not any(
            store.buffer.same_as(other.buffer)
            and tvm_ffi.structural_equal(store.indices, other.indices, map_free_vars=False)
            for other in sums
        ):
            sums.append(store)
    each = len(body) / len(sums)
    used = first.variables | begun
    inner = [extent for var, extent in axes if var not in used]
    if not axes or not inner:
        return None
    vectors = len(sums) * ceil(first.lanes * first.element_bytes / hardware.vector_bytes)
    held = hardware.registers_each * _WORD
    goes_through = axes[-1][0] in first.variables
    if goes_through and first.scope == "local" and buffer_bytes(first.buffer) <= held:
        return None  # Compilers unroll such loops.
    in_memory = goes_through or vectors * hardware.vector_bytes > held
    length = round(each * (prod(inner) if in_memory else _last(axes, used)))
    if length < _LONG:
        return None
    additions = sum(executions(kernel, statement.store.place).times for statement in body)
    least = additions / CORE.adders
    # What a store has written can be loaded a few cycles later; others go on meanwhile, so that
    # memory is busy and adders are not.
    cycles = 2 * least if in_memory else max(least, CORE.latency * additions / len(sums))
    load = next(load for load in body[0].loads if load.buffer.same_as(first.buffer))
    return Accumulators(
        kernel.name,
        str(first),
        kernel.line(load, first),
        name_of(axes[-1][0]),
        len(sums),
        vectors,
        length,
        additions,
        round(cycles),
        round(least),
        in_memory,
    )


def _last(axes: Sequence[tuple[Any, int]], used: Set[Any]) -> int:
    """Iterations of the innermost loops that no index depends on."""
    count = 1
    for var, extent in reversed(axes):
        if var in used:
            break
        count *= extent
    return count


def accumulator_findings(function: tirx.PrimFunc | Kernel, target: TargetSpec) -> list[Finding]:
    """Innermost loops whose additions wait for each other, or for memory."""
    findings = []
    for kernel in code_for_cpu(function, target):
        stores = [site for site in kernel.sites if site.is_store]
        total = sum(executions(kernel, store.place).times for store in stores)
        for one in accumulators(kernel, target):
            lost = one.cycles - one.least_cycles
            if lost < _LITTLE * one.cycles:
                continue
            share = lost / one.cycles * one.additions / total
            findings.append(
                Finding(
                    kernel.name,
                    "accumulators",
                    f"for {one.loop}",
                    one.line,
                    {"cycles": float(lost)},
                    share,
                    _sentence(one),
                    _remedy(one),
                )
            )
    return findings


def _sentence(one: Accumulators) -> str:
    buffer = one.text.split("[")[0]
    if one.in_memory and one.in_flight >= _MANY:
        return (
            f"The {one.in_flight} sums of {buffer} that the innermost loop {one.loop} adds to take "
            f"{one.vectors} vectors, more than there are registers: {one.additions:,} additions "
            "load and store them."
        )
    if one.in_memory:
        return (
            f"Each of {one.additions:,} additions loads its sum from {buffer} and stores it there, "
            f"as the innermost loop {one.loop} goes through the sums."
        )
    busy = CORE.latency * CORE.adders
    return (
        f"The innermost loop {one.loop} adds to {one.in_flight} sum{'s' * (one.in_flight > 1)} "
        f"of {buffer} in turn, each addition {CORE.latency} cycles after the one before it; "
        f"{busy} sums would keep the adders busy."
    )


def _remedy(one: Accumulators) -> str:
    if not one.in_memory:
        return (
            "Compute a tile of several rows and vectors at a time: unroll loops of results inside "
            "the loop that sums."
        )
    if one.in_flight >= _MANY:
        return "Make the tile that is summed up at a time smaller."
    return (
        "Keep a tile of sums in registers: make the loop that sums the outer one of a small, "
        "unrolled tile of results (cache_write, scope local)."
    )
