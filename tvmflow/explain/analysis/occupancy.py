"""Registers of a work-item, and occupancy: the waves that a multiprocessor can hold.

A private array is in registers if every index is a constant, as after unrolling.  An array indexed
by a work-item, or by a long loop, needs an address and is in memory.  Registers hold the whole
array if it accumulates, or if it is written in other loops than it is read; other arrays are
copies, which compilers make as late as possible.  The estimate adds two registers for the address
of each tensor, one for each loop and each axis of the item's index, and two operands of the widest
access.

Waves hide each other's memory latency.  A multiprocessor (Qualcomm's shader processor, Arm's shader
core) holds as many whole work-groups as its waves, registers, local memory and slots for groups
allow::

    groups of 64 items, 32 registers each, 8 KiB of local memory, on an NVIDIA A100:
        64 waves / 2 = 32    65536 registers / (64 * 32) = 32    164 KiB / (8 + 1) KiB = 18
        18 groups are 36 of 64 waves: local memory limits occupancy to 56 %
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

from ...devices.target import TargetSpec
from ...ir.traffic import buffer_bytes
from ...ir.units import counted
from ..profiling.record import Finding
from .accesses import Site
from .executions import wave_instructions
from .hardware import hardware_of
from .local_memory import local_buffers
from .lowered import LoweredKernel, of_kernels

#: Longest loop that drivers unroll on their own.
_UNROLLED = 16
_WORD = 4
#: Memory scope of the sums of tensor cores.
_SUMS = "wmma.accumulator"
#: Share of the waves below which there is a finding.
_GOOD = 0.5
#: Share of the lanes of a group's waves below which there is a finding.
_FULL = 0.75


@dataclass(frozen=True)
class RegisterUse:
    """Estimated registers of a work-item."""

    kernel: str
    #: 32-bit registers.
    registers: int
    #: 32-bit registers that a work-item can have.
    limit: int
    #: Registers of private arrays other than copies.
    array_registers: int
    #: Private arrays in memory, because an index is not a constant.
    indexed: tuple[str, ...]
    #: Bytes of those arrays for each work-item.
    memory_bytes: int
    #: Bytes that do not fit the registers, for each work-item.
    spilled_bytes: int


@of_kernels
def registers(kernel: LoweredKernel, target: TargetSpec) -> Iterator[RegisterUse]:
    """Estimate how many registers a work-item of each kernel needs."""
    hardware = hardware_of(target)
    limit = hardware.registers_each
    private = [buffer for buffer in kernel.allocated if str(buffer.scope()) in ("local", _SUMS)]
    array_bytes = memory_bytes = 0
    indexed = []
    for buffer in private:
        size = buffer_bytes(buffer)
        if str(buffer.scope()) == _SUMS:
            # The items of a wave share a tile of tensor cores.
            array_bytes += size // hardware.wave
            continue
        sites = [site for site in kernel.sites if site.buffer.same_as(buffer)]
        if not all(map(_is_register, sites)):
            indexed.append(str(buffer.name))
            memory_bytes += size
        elif buffer in kernel.sums or len({site.context.loops for site in sites}) > 1:
            array_bytes += size
    tensors = {s.name for s in kernel.sites if s.scope.startswith("global")}
    loops = max((len(site.context.loops) for site in kernel.sites), default=0)
    axes = sum(extent > 1 for _, extent in kernel.launch.values())
    widest = max((site.lanes * site.element_bytes for site in kernel.sites), default=0)
    arrays = -(-array_bytes // _WORD)
    total = arrays + 2 * len(tensors) + loops + axes + 2 * -(-widest // _WORD)
    yield RegisterUse(
        kernel=kernel.name,
        registers=total,
        limit=limit,
        array_registers=arrays,
        indexed=tuple(indexed),
        memory_bytes=memory_bytes,
        spilled_bytes=max(0, total - limit) * _WORD,
    )


def _is_register(site: Site) -> bool:
    """Return whether the index is a constant once short loops are unrolled."""
    return site.variables <= {var for var, extent in site.context.loops if extent <= _UNROLLED}


def register_findings(kernel: LoweredKernel, target: TargetSpec) -> Iterator[Finding]:
    """Find kernels whose items need more than their registers."""
    (use,) = registers(kernel, target)
    items = kernel.groups * kernel.group_size
    # A CPU has them in the first cache; :mod:`.cpu_loops` finds sums in memory.
    if use.indexed and not target.device.is_cpu:
        names = ", ".join(use.indexed)
        sites = [s for s in kernel.sites if s.name in use.indexed]
        yield Finding(
            *(kernel.name, "registers", str(sites[0]), kernel.line(*sites)),
            {"bytes": float(use.memory_bytes * items)},
            use.memory_bytes / (use.memory_bytes + use.registers * _WORD),
            f"The private array {names} is in memory, {use.memory_bytes:,} bytes for each "
            "work-item: its index is not a constant.",
            "Unroll the loops that its index depends on, or remove an axis.",
        )
    if use.spilled_bytes:
        arrays = [s for s in kernel.sites if s.scope == "local"]
        array = str(arrays[0]) if arrays else ""
        yield Finding(
            *(kernel.name, "registers", array, kernel.line(*arrays)),
            {"bytes": float(use.spilled_bytes * items)},
            1 - use.limit / use.registers,
            f"A work-item needs about {use.registers} registers of 32 bits, and has at "
            f"most {use.limit}: about {use.spilled_bytes:,} bytes are kept in memory.",
            "Make the tile of an item smaller.",
        )


@dataclass(frozen=True)
class Occupancy:
    """Occupancy of a multiprocessor by the work-groups of a kernel."""

    kernel: str
    #: Work-items of a group, and number of groups.
    group_size: int
    groups: int
    #: Waves of a group, and share of their lanes that have a work-item, from 0 to 1.
    waves_per_group: int
    lanes: float
    #: Groups that a multiprocessor holds at a time.
    resident_groups: int
    #: Share of the possible waves that these groups have, from 0 to 1.
    occupancy: float
    #: Limiting resource: ``waves``, ``groups``, ``registers``, ``local memory``.
    limit: str
    #: Bytes of local memory of a group.
    local_bytes: int
    #: Estimated 32-bit registers of an item.
    registers: int
    #: Share of the multiprocessors that have a group; ``None`` if their number is unknown.
    busy: float | None


@of_kernels
def occupancy(kernel: LoweredKernel, target: TargetSpec) -> Iterator[Occupancy]:
    """Find how many waves of each kernel a multiprocessor can hold, given estimated registers.

    There are no records for CPUs, where a thread runs a group.
    """
    if target.device.is_cpu:
        return
    hardware = hardware_of(target)
    size = kernel.group_size
    waves = ceil(size / hardware.wave)
    (use,) = registers(kernel, target)
    portion = hardware.register_portion
    each = min(ceil(use.registers / portion) * portion, hardware.registers_each)
    local = sum(map(buffer_bytes, local_buffers(kernel)))
    fitting = {
        "waves": hardware.waves // waves,
        "groups": hardware.groups,
        "registers": hardware.registers // max(1, each * waves * hardware.wave),
    }
    if local:
        fitting["local memory"] = hardware.local_bytes // (local + hardware.reserved_bytes)
    limit = min(fitting, key=lambda name: fitting[name])
    resident = fitting[limit]
    gpu = target.device.multiprocessors
    yield Occupancy(
        kernel=kernel.name,
        group_size=size,
        groups=kernel.groups,
        waves_per_group=waves,
        lanes=size / (waves * hardware.wave),
        resident_groups=resident,
        occupancy=resident * waves / hardware.waves,
        limit=limit,
        local_bytes=local,
        registers=use.registers,
        busy=None if gpu is None else min(1.0, kernel.groups / gpu.count),
    )


_REMEDY = {
    "waves": "Choose a group size whose waves divide those of a multiprocessor.",
    "groups": "Let work-groups have more items.",
    "registers": "Let an item compute a smaller tile, or have fewer items in a group.",
    "local memory": "Copy smaller tiles to local memory, or let more items share them.",
}


def occupancy_findings(kernel: LoweredKernel, target: TargetSpec) -> Iterator[Finding]:
    """Find kernels that leave much of a multiprocessor empty."""
    for found in occupancy(kernel, target):
        for unused, sentence, remedy in _losses(found):
            launch = f"{found.groups} work-groups of {found.group_size}"
            # Cycles that no other wave hides, or of idle lanes and multiprocessors.
            cost = {"cycles": unused * wave_instructions(kernel, hardware_of(target).wave)}
            place = found.kernel, "occupancy", launch, kernel.launch_line
            yield Finding(*place, cost, unused, sentence, remedy)


def _losses(found: Occupancy) -> Iterator[tuple[float, str, str]]:
    """Yield the unused share of a multiprocessor, a sentence, and a remedy."""
    waves = counted(found.waves_per_group, "wave")
    verb = "limit" if found.limit.endswith("s") else "limits"
    if found.occupancy < _GOOD:
        held = f"{found.resident_groups} groups of {waves} at a time, {found.occupancy:.0%}"
        sentence = f"A multiprocessor holds {held} of its waves; {found.limit} {verb} it."
        # Half of the waves suffice to hide the memory latency.
        yield 1 - found.occupancy / _GOOD, sentence, _REMEDY[found.limit]
    if found.lanes < _FULL:
        full = f"{found.lanes:.0%} of the lanes of {waves}"
        sentence = f"A group of {found.group_size} items fills {full}."
        remedy = "Choose a group size that is a multiple of the device's wave."
        yield 1 - found.lanes, sentence, remedy
    if found.busy is not None and found.busy < 1:
        idle = 1 - found.busy
        sentence = f"{found.groups} groups leave {idle:.0%} of the multiprocessors without work."
        yield idle, sentence, "Let an item compute less, or split a reduction over groups."
