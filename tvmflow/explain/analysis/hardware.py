"""Hardware facts that analyses use: sizes of memory transactions, waves and registers.

The numbers are from the vendors' guides: Qualcomm's "Snapdragon Mobile Platform OpenCL
General Programming and Optimization", Arm's "Mali Bifrost and Valhall OpenCL Developer Guide", "The
Valhall Shader Core" and "Arm GPU Datasheet" (Mali-G57 to G78), NVIDIA's "CUDA C++ Best Practices
Guide", "CUDA C++ Programming Guide" and "Ampere Tuning Guide" (compute capability 8.0).  Registers
of Adreno are not published by Qualcomm: Mesa's driver for Adreno 6xx has these numbers.  None of
them was measured here.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...devices.target import TargetSpec


@dataclass(frozen=True)
class Hardware:
    """Hardware facts of a class of devices."""

    #: Work-items that run one instruction together.
    wave: int
    #: Size of a memory transaction, in bytes.
    line_bytes: int
    #: Banks of local memory, four bytes wide each; 1 without dedicated local memory.
    banks: int
    #: Widest access of one work-item, in bytes.
    vector_bytes: int
    #: 32-bit registers of a multiprocessor (a shader processor, a core).
    registers: int
    #: 32-bit registers that one work-item can have.
    registers_each: int
    #: Waves that a multiprocessor holds at a time.
    waves: int
    #: Work-groups that a multiprocessor holds at a time.
    groups: int
    #: Local memory of a multiprocessor, in bytes.
    local_bytes: int
    #: Granularity of the registers of a work-item.
    register_portion: int = 8
    #: Local memory that the system reserves for each work-group, in bytes.
    reserved_bytes: int = 0


#: Hardware facts by the name of the device preset.
HARDWARE = {
    # A thread runs a work-group; drivers compute up to 16 neighbours as one vector.  Local memory
    # is ordinary memory, and the 32 vector registers are all registers.
    "cpu": Hardware(
        wave=16, line_bytes=64, banks=1, vector_bytes=64, registers=512, registers_each=512,
        waves=1, groups=1, local_bytes=32 << 10,
    ),
    # 96 times four registers for each work-item of two waves, and 48 of these times four at most;
    # banks as on other GPUs.
    "adreno": Hardware(
        wave=64, line_bytes=64, banks=32, vector_bytes=16, registers=48 << 10, registers_each=192,
        waves=16, groups=16, local_bytes=32 << 10, register_portion=4,
    ),
    # Valhall: a core holds 1024 work-items with up to 32 registers each, half as many with 64.
    "mali": Hardware(
        wave=16, line_bytes=64, banks=1, vector_bytes=16, registers=32 << 10, registers_each=64,
        waves=64, groups=64, local_bytes=32 << 10, register_portion=32,
    ),
    # Fetches are sectors of 32 bytes, four to a line.  CUDA reserves 1 KiB for each block.
    "nvidia": Hardware(
        wave=32, line_bytes=32, banks=32, vector_bytes=16, registers=64 << 10, registers_each=255,
        waves=64, groups=32, local_bytes=164 << 10, reserved_bytes=1 << 10,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Core:
    """Facts about a CPU core that AMD's and Intel's optimization guides agree on."""

    #: Lines of the first cache, 32 KiB.
    lines: int = 512
    #: Entries of the first TLB, their page size, and the cycles of a miss.
    pages: int = 64
    page_bytes: int = 4096
    page_cycles: int = 7
    #: Latency of an addition in cycles, and additions that start in a cycle.
    latency: int = 4
    adders: int = 2


CORE = Core()


def hardware_of(target: TargetSpec) -> Hardware:
    """Return the facts of a target's device."""
    return HARDWARE[target.device.name]
