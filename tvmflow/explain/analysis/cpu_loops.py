"""Loops of CPU code: lanes of vectors, sums in flight, and busy cores.

Lanes.  Compilers vectorize an innermost loop if its iterations are independent and access
neighbours.  They do not if the iterations add to one floating-point number, whose rounding would
change, and seldom if the accesses are far apart::

    for i, j, k:                 one number at a time: each k waits for the one before it, and
        c[i, j] += a[i, k] * b[k, j]          b's are a row apart
    for i, k, j:                 the compiler's vectors: neighbouring j are independent
        c[i, j] += a[i, k] * b[k, j]

OpenCL drivers do so.  On ``llvm`` only explicit vectors are vectors, because LLVM's loop vectorizer
is off (:mod:`tvmflow.devices.target`).

Sums in flight.  An addition takes several cycles, and a core can start more than one in each cycle.
A single sum therefore leaves the adders idle most of the time::

    for k: total += a[k] * b[k]                   each step waits for the one before it: 4 cycles
    for k: total[0..7] += a[k] * b[k, 0..7]       8 sums in 8 registers: two in each cycle

Sums that an inner loop iterates over are in memory, loaded and stored at each step::

    for k: for j: total[j] += a[k] * b[k, j]
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from math import ceil, prod

import tvm_ffi
from tvm import tirx

from ...devices.target import TargetSpec
from ...ir.dot_products import DOT
from ...ir.rewriter import op_name
from ...ir.traffic import buffer_bytes
from ...ir.units import counted
from ..grouping import grouped
from ..profiling.record import Finding
from .accesses import Site
from .executions import axes_of, executions, stride, times_of
from .hardware import CORE, Hardware, hardware_of
from .lowered import InKernel, LoweredKernel, of_cpu_code

#: Bytes of a number in arithmetic: smaller ones are widened.
_WORD = 4
#: Iterations that a loop needs for compilers to vectorize it.
_SHORT = 8
#: Additions in a row that a sum needs for its latency to count: cores overlap shorter ones.
_LONG = 64
#: Smallest loss, as a share of the cycles, that is a finding.
_LITTLE = 0.2
#: Number of sums in the code that only an unrolled tile can have.
_MANY = 32
#: Executions of a statement that are worth starting other cores.
_SMALL = 1 << 14


@dataclass(frozen=True)
class Statement:
    """A store, and the loads of its value."""

    store: Site
    loads: tuple[Site, ...]

    @property
    def sums_up(self) -> bool:
        """True if the statement adds to the value that it stored before."""
        return any(map(self.store.is_at, self.loads))

    @property
    def numbers(self) -> int:
        """Numbers that the statement computes at a time."""
        return self.store.lanes * tvm_ffi.dtype(self.store.buffer.dtype).lanes


def statements(kernel: LoweredKernel) -> list[Statement]:
    """Return all stores of a kernel, in the order of the code."""
    return [
        Statement(site, tuple(load for load in sites if not load.is_store))
        for sites in grouped(kernel.sites, lambda site: site.statement).values()
        for site in sites
        if site.is_store
    ]


@dataclass(frozen=True)
class VectorLanes(InKernel):
    """A statement that writes memory, and how many numbers it computes at a time."""

    #: Numbers that the statement computes at a time, and numbers of a full vector.
    lanes: int
    possible: int
    #: Number of times that the statement runs.
    executions: int
    #: Innermost loop around the statement; empty if there is none.
    loop: str
    #: Whether the compiler can vectorize that loop.
    by_compiler: bool
    #: Reason why it cannot; empty if it can.
    obstacle: str
    #: Innermost loop whose iterations write neighbours; empty if there is none.
    neighbours: str


@of_cpu_code
def vector_lanes(kernel: LoweredKernel, target: TargetSpec) -> Iterator[VectorLanes]:
    """Find how many lanes of its vectors a CPU uses, statement by statement."""
    width = hardware_of(target).vector_bytes
    for statement in statements(kernel):
        store, lanes = statement.store, statement.numbers
        axes = axes_of(kernel, store)
        obstacle = _obstacle(kernel, statement, *axes[-1]) if axes else "there is no loop around it"
        if target.kind == "llvm":
            obstacle = obstacle or "only vectors that are written out are vectors on llvm"
        runs = (str(v.name) for v, _ in reversed(axes) if stride(kernel, store, v) == store.lanes)
        # The first write of a sum is its initialization; its loads mark the accumulation.
        begins = [load for load in statement.loads if load.buffer.same_as(store.buffer)]
        yield VectorLanes(
            *kernel.at(store, *begins, store),
            lanes=lanes,
            possible=max(lanes, width // max(_WORD, store.element_bytes * store.lanes // lanes)),
            executions=executions(kernel, store.context),
            loop=str(axes[-1][0].name) if axes else "",
            by_compiler=not obstacle,
            obstacle=obstacle,
            neighbours=next(runs, ""),
        )


def _obstacle(kernel: LoweredKernel, statement: Statement, var: tirx.Var, extent: int) -> str:
    """Return the reason why a compiler does not vectorize a loop; empty if it does."""
    store, loop = statement.store, f"the innermost loop {var.name}"
    if extent < _SHORT:
        return f"{loop} has only {extent} iterations"
    if var in store.context.variables:
        return ""  # Compilers mask lanes, or split the loop.
    if stride(kernel, store, var) == 0 and str(store.buffer.dtype).startswith("float"):
        return f"all iterations of {loop} add to one number"
    for site in (store, *statement.loads):
        step = stride(kernel, site, var)
        if step not in (0, site.lanes):
            far = f"{step:,} elements" if step else "no fixed distance"
            gathered = ", which a vector gathers one by one" if site.lanes == 1 else ""
            return f"iterations of {loop} access {site.name} {far} apart{gathered}"
    return "compilers leave vectors in the code as long as they are" if store.lanes > 1 else ""


def lanes_findings(kernel: LoweredKernel, target: TargetSpec) -> Iterator[Finding]:
    """Find statements that use few lanes of a vector."""
    found = vector_lanes(kernel, target)
    total = sum(one.executions for one in found)
    for one in found:
        saved = one.executions * (1 - one.lanes / one.possible)
        # A statement outside of loops runs once.
        if one.by_compiler or not saved or not one.loop:
            continue
        yield one.finding(
            "vector-width",
            # An execution of a statement takes about a cycle.
            {"cycles": float(saved)},
            saved / total,
            f"{one.buffer} is computed {counted(one.lanes, 'number')} at a time, "
            f"{one.executions:,} times, in vectors of {one.possible}: {one.obstacle}.",
            _lanes_remedy(one),
        )


def _lanes_remedy(one: VectorLanes) -> str:
    loop, width = one.neighbours, one.possible
    if not loop:
        alike = "what is computed alike lies side by side"
        return f"Change the layout of {one.buffer} so that {alike}."
    if one.lanes > 1:
        rest = "them, padded where the tensor ends sooner."
        return f"Iterations of {loop} write neighbours: make vectors of {width} of {rest}"
    if loop == one.loop:
        return f"Vectorize {loop}, split by {width}; copy what it reads side by side."
    rest = "move the inner part innermost, and vectorize it."
    return f"Split {loop}, whose iterations write neighbours, by {width}, {rest}"


@dataclass(frozen=True)
class Accumulators(InKernel):
    """Sums of an innermost loop; the text shows the first one."""

    #: Innermost loop.
    loop: str
    #: Number of sums that the loop adds to in turn; a vector counts as one.
    in_flight: int
    #: Vector registers that the sums need.
    vectors: int
    #: Consecutive additions to each sum.
    length: int
    #: Number of all additions.
    additions: int
    #: Cycles of the additions, each of which waits for the previous one or for an adder.
    cycles: int
    #: Cycles with all adders busy.
    least_cycles: int
    #: Whether each addition loads and stores its sum, because registers do not hold all sums.
    in_memory: bool


@of_cpu_code
def accumulators(kernel: LoweredKernel, target: TargetSpec) -> Iterator[Accumulators]:
    """Find how many sums each innermost loop adds to.

    There is a record for each innermost loop that adds to its sums at least 64 times in a row.
    """
    sums = []
    begun: defaultdict[tirx.Buffer, set[tirx.Var]] = defaultdict(set)
    for statement in statements(kernel):
        store = statement.store
        if not statement.sums_up:
            # Loops whose iterations each initialize the sum.
            begun[store.buffer] |= {v for v, _ in axes_of(kernel, store)} - store.context.variables
        elif _waits(statement):
            sums.append(statement)
    for body in grouped(sums, lambda statement: statement.store.context.loops).values():
        yield from _accumulators(kernel, body, begun[body[0].store.buffer], hardware_of(target))


def _waits(statement: Statement) -> bool:
    """Return whether additions take more than a cycle, unlike those of whole numbers."""
    if str(statement.store.buffer.dtype).startswith("float"):
        return True
    # Without vectors, dot products become additions of whole numbers.
    return op_name(statement.store.value) == DOT and statement.numbers > 1


def _accumulators(
    kernel: LoweredKernel, body: Sequence[Statement], begun: set[tirx.Var], hardware: Hardware
) -> Iterator[Accumulators]:
    """Yield the sums of a loop's body; ``begun`` are the loops that initialize them."""
    stores = [statement.store for statement in body]
    first = stores[0]
    axes = axes_of(kernel, first)
    sums: list[Site] = []
    for store in stores:
        if not any(map(store.is_at, sums)):
            sums.append(store)
    used = first.variables | begun
    inner = [extent for var, extent in axes if var not in used]
    if not inner:
        return
    vectors = len(sums) * ceil(first.lanes * first.element_bytes / hardware.vector_bytes)
    held = hardware.registers_each * _WORD
    goes_through = axes[-1][0] in first.variables
    if goes_through and first.scope == "local" and buffer_bytes(first.buffer) <= held:
        return  # Compilers unroll such loops.
    in_memory = goes_through or vectors * hardware.vector_bytes > held
    if not in_memory:
        # Only the innermost loops that no index depends on add in a row.
        inner = [n for _, n in takewhile(lambda axis: axis[0] not in used, reversed(axes))]
    length = round(len(body) / len(sums) * prod(inner))
    if length < _LONG:
        return
    additions = times_of(kernel, stores)
    least = additions / CORE.adders
    # A stored sum can be loaded a few cycles later, while other sums proceed: the memory limits
    # then, and not the adders.
    cycles = 2 * least if in_memory else max(least, CORE.latency * additions / len(sums))
    load = next(load for load in body[0].loads if load.buffer.same_as(first.buffer))
    yield Accumulators(
        *kernel.at(first, load, first),
        loop=str(axes[-1][0].name),
        in_flight=len(sums),
        vectors=vectors,
        length=length,
        additions=additions,
        cycles=round(cycles),
        least_cycles=round(least),
        in_memory=in_memory,
    )


def accumulator_findings(kernel: LoweredKernel, target: TargetSpec) -> Iterator[Finding]:
    """Find innermost loops whose additions wait for each other, or for memory."""
    total = times_of(kernel, kernel.stores)
    for one in accumulators(kernel, target):
        lost = one.cycles - one.least_cycles
        if lost >= _LITTLE * one.cycles:
            share = lost / one.cycles * one.additions / total
            yield _sums_finding(one, {"cycles": float(lost)}, share)


def _sums_finding(one: Accumulators, cost: Mapping[str, float], share: float) -> Finding:
    loop = f"innermost loop {one.loop}"
    finding = partial(one.finding, "accumulators", cost, share, text=f"for {one.loop}")
    if not one.in_memory:
        return finding(
            f"The {loop} adds to {counted(one.in_flight, 'sum')} of {one.buffer} in turn, each "
            f"addition {CORE.latency} cycles after the one before it; {CORE.latency * CORE.adders} "
            "sums would keep the adders busy.",
            "Compute a tile of several rows and vectors at a time: unroll loops of results inside "
            "the loop that sums.",
        )
    if one.in_flight >= _MANY:
        return finding(
            f"The {one.in_flight} sums of {one.buffer} that the {loop} adds to take {one.vectors} "
            f"vectors, more than there are registers: {one.additions:,} additions load and store "
            "them.",
            "Make the tile that is summed up at a time smaller.",
        )
    return finding(
        f"Each of {one.additions:,} additions loads its sum from {one.buffer} and stores it "
        f"there, as the {loop} goes through the sums.",
        "Keep a tile of sums in registers: make the loop that sums the outer one of a small, "
        "unrolled tile of results (cache_write, scope local).",
    )


@dataclass(frozen=True)
class LoopNest(InKernel):
    """An outermost loop, and how many cores it occupies.

    The text is the access of the most frequent store.
    """

    #: Outermost loop; empty for work-items without one.
    loop: str
    #: Executions of the statements in it.
    executions: int
    #: Iterations of parallel loops, or work-groups, that cores can share; 1 for a single core.
    parts: int


@of_cpu_code
def loop_nests(kernel: LoweredKernel, target: TargetSpec) -> Iterator[LoopNest]:
    """Find into how many parts the work of each outermost loop can be divided."""

    def loop_around(store: Site) -> tirx.Var | None:
        loops = store.context.loops
        return loops[0][0] if loops and not target.is_gpu_kernel else None

    for outermost, stores in grouped(kernel.stores, loop_around).items():
        most = max(stores, key=lambda store: executions(kernel, store.context))
        yield LoopNest(
            *kernel.at(most),
            loop="" if outermost is None else str(outermost.name),
            executions=times_of(kernel, stores),
            parts=prod(n for var, n in axes_of(kernel, most) if var in kernel.parallel),
        )


def parallel_findings(kernel: LoweredKernel, target: TargetSpec) -> Iterator[Finding]:
    """Find work that one core does while others wait."""
    nests = loop_nests(kernel, target)
    total = sum(nest.executions for nest in nests)
    for nest in nests:
        if nest.parts > 1 or nest.executions < _SMALL:
            continue
        yield nest.finding(
            "parallel",
            {"cycles": float(nest.executions)},
            nest.executions / total,
            f"One core computes {nest.buffer}, in {nest.executions:,} steps; the others wait.",
            f"Make the outermost loop {nest.loop} parallel, or a loop of results, not of "
            "sums, that is moved there."
            if nest.loop
            else "Bind the outermost loop of results to blockIdx.x: work-groups are spread "
            "over cores.",
            f"for {nest.loop}" if nest.loop else nest.kernel,
        )
