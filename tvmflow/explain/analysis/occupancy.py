"""Occupancy: how many waves a multiprocessor can hold, and what limits them.

Waves hide each other's waiting for memory.  A multiprocessor (Qualcomm's shader processor, Arm's
shader core) holds whole work-groups, as many as its waves, registers, local memory and slots for
groups allow::

    groups of 64 items, 32 registers each, 8 KiB of local memory, on an NVIDIA A100:
        64 waves / 2 = 32    65536 registers / (64 * 32) = 32    164 KiB / (8 + 1) KiB = 18
        18 groups are 36 of 64 waves: local memory limits occupancy to 56 %
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from tvm import tirx

from ...devices.target import TargetSpec
from ...ir.units import counted
from ..profiling.record import Finding
from .counting import wave_instructions
from .hardware import hardware_of
from .local_memory import local_bytes
from .lowered import Kernel, kernels_of
from .registers import registers

#: Less than this share of the waves is a finding.
_GOOD = 0.5
#: Less than this share of the lanes of a group's waves is a finding.
_FULL = 0.75


@dataclass(frozen=True)
class Occupancy:
    """How well a kernel's work-groups fill a multiprocessor."""

    kernel: str
    #: Work-items of a group, and number of groups.
    group_size: int
    groups: int
    #: Waves of a group, and how much of their lanes are work-items, from 0 to 1.
    waves_per_group: int
    lanes: float
    #: Groups that a multiprocessor holds at a time.
    resident_groups: int
    #: Their waves, of those that it could hold, from 0 to 1.
    occupancy: float
    #: What limits it: ``waves``, ``groups``, ``registers``, ``local memory``.
    limit: str
    #: Bytes of local memory of a group.
    local_bytes: int
    #: 32-bit registers of an item, by estimate.
    registers: int
    #: Multiprocessors that have a group, from 0 to 1; ``None`` where their number is not known.
    busy: float | None


def occupancy(function: tirx.PrimFunc | Kernel, target: TargetSpec) -> list[Occupancy]:
    """Find how many waves of a kernel a multiprocessor can hold.

    Parameters
    ----------
    function
        A scheduled primary function, or one of its kernels.
    target
        What it is compiled for.

    Returns
    -------
    list of Occupancy
        One for each kernel, none on CPUs, where a group is a thread's.  Registers are estimated
        (:func:`.registers`).
    """
    if target.device.is_cpu:
        return []
    return [_occupancy(kernel, target) for kernel in kernels_of(function, target)]


def _occupancy(kernel: Kernel, target: TargetSpec) -> Occupancy:
    hardware = hardware_of(target)
    size = kernel.group_size
    waves = ceil(size / hardware.wave)
    (use,) = registers(kernel, target)
    portion = hardware.register_portion
    each = min(ceil(use.registers / portion) * portion, hardware.registers_each)
    local = local_bytes(kernel)
    fitting = {
        "waves": hardware.waves // waves,
        "groups": hardware.groups,
        "registers": hardware.registers // max(1, each * waves * hardware.wave),
    }
    if local:
        fitting["local memory"] = hardware.local_bytes // (local + hardware.reserved_bytes)
    limit = min(fitting, key=lambda name: fitting[name])
    resident = fitting[limit]
    count = target.device.multiprocessors.count if target.device.multiprocessors else None
    return Occupancy(
        kernel.name,
        size,
        kernel.groups,
        waves,
        size / (waves * hardware.wave),
        resident,
        resident * waves / hardware.waves,
        limit,
        local,
        use.registers,
        None if count is None else min(1.0, kernel.groups / count),
    )


#: Share of a multiprocessor that is not used, a sentence, and a remedy.
_Loss = tuple[float, str, str]

_REMEDY = {
    "waves": "Choose a group size whose waves divide those of a multiprocessor.",
    "groups": "Let work-groups have more items.",
    "registers": "Let an item compute a smaller tile, or have fewer items in a group.",
    "local memory": "Copy smaller tiles to local memory, or let more items share them.",
}


def occupancy_findings(function: tirx.PrimFunc | Kernel, target: TargetSpec) -> list[Finding]:
    """Kernels that leave much of a multiprocessor empty."""
    return [
        _finding(kernel, found, *loss, hardware_of(target).wave)
        for kernel in kernels_of(function, target)
        for found in occupancy(kernel, target)
        for loss in (_waves(found), _lanes(found), _groups(found))
        if loss is not None
    ]


def _finding(
    kernel: Kernel, found: Occupancy, unused: float, sentence: str, remedy: str, wave: int
) -> Finding:
    return Finding(
        found.kernel,
        "occupancy",
        f"{found.groups} work-groups of {found.group_size}",
        kernel.launch_line,
        # What waves take that nothing hides, or lanes and multiprocessors that do not work.
        {"cycles": unused * wave_instructions(kernel, wave)},
        unused,
        sentence,
        remedy,
    )


def _count(found: Occupancy) -> str:
    return counted(found.waves_per_group, "wave")


def _waves(found: Occupancy) -> _Loss | None:
    if found.occupancy >= _GOOD:
        return None
    limit = f"{found.limit} limit{'' if found.limit.endswith('s') else 's'} it"
    sentence = (
        f"A multiprocessor holds {found.resident_groups} groups of {_count(found)} "
        f"at a time, {found.occupancy:.0%} of its waves; {limit}."
    )
    # Half of the waves hide what memory takes.
    return 1 - found.occupancy / _GOOD, sentence, _REMEDY[found.limit]


def _lanes(found: Occupancy) -> _Loss | None:
    if found.lanes >= _FULL:
        return None
    sentence = (
        f"A group of {found.group_size} items fills {found.lanes:.0%} of the lanes of "
        f"{_count(found)}."
    )
    remedy = "Choose a group size that is a multiple of the device's wave."
    return 1 - found.lanes, sentence, remedy


def _groups(found: Occupancy) -> _Loss | None:
    if found.busy is None or found.busy == 1:
        return None
    return (
        1 - found.busy,
        f"{found.groups} groups leave {1 - found.busy:.0%} of the multiprocessors without work.",
        "Let an item compute less, or split a reduction over groups.",
    )
