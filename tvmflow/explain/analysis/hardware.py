"""Facts of devices that analyses count with: fetching memory, running work-items together.

The numbers are those of the vendors' guides: Qualcomm's "Snapdragon Mobile Platform OpenCL
General Programming and Optimization", Arm's "Mali Bifrost and Valhall OpenCL Developer Guide", "The
Valhall Shader Core" and "Arm GPU Datasheet" (Mali-G57 to G78), NVIDIA's "CUDA C++ Best Practices
Guide", "CUDA C++ Programming Guide" and "Ampere Tuning Guide" (compute capability 8.0).  Registers
of Adreno are not published by Qualcomm: they are what Mesa's driver for Adreno 6xx counts with.
None of them is measured here.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...devices.target import TargetSpec


@dataclass(frozen=True)
class Hardware:
    """Facts about a class of devices that analyses depend on."""

    #: Work-items that run one instruction together.
    wave: int
    #: Bytes that memory is fetched in.
    line_bytes: int
    #: Banks of local memory, of four bytes each; 1 where it has none of its own.
    banks: int
    #: Widest access of one work-item, in bytes.
    vector_bytes: int
    #: 32-bit registers of a multiprocessor (a shader processor, a core).
    registers: int
    #: 32-bit registers that one work-item can have.
    registers_each: int
    #: Waves that a multiprocessor holds at a time.
    waves: int
    #: Work-groups that it holds at a time.
    groups: int
    #: Local memory of a multiprocessor, in bytes.
    local_bytes: int
    #: Registers are given to a work-item in portions of as many.
    register_portion: int = 8
    #: Local memory of each work-group that is not the kernel's, in bytes.
    reserved_bytes: int = 0


#: By the name of the device preset.
HARDWARE = {
    # A group is a thread's; drivers compute 16 of its neighbours as one vector, if it has as many.
    # Local memory is memory, and 32 vectors are all registers.
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
    # Valhall: 1024 work-items in a core with up to 32 registers each, half as many with 64.
    "mali": Hardware(
        wave=16, line_bytes=64, banks=1, vector_bytes=16, registers=32 << 10, registers_each=64,
        waves=64, groups=64, local_bytes=32 << 10, register_portion=32,
    ),
    # Sectors of 32 bytes are what is fetched; a line has four.  CUDA keeps 1 KiB of each block.
    "nvidia": Hardware(
        wave=32, line_bytes=32, banks=32, vector_bytes=16, registers=64 << 10, registers_each=255,
        waves=64, groups=32, local_bytes=164 << 10, reserved_bytes=1 << 10,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Core:
    """Facts about a core of a CPU: what AMD's and Intel's optimization guides have in common."""

    #: Lines of memory in its first cache: 32 KiB.
    lines: int = 512
    #: Pages of which it knows the address at once, and their size; others take some cycles.
    pages: int = 64
    page_bytes: int = 4096
    page_cycles: int = 7
    #: Cycles until a sum can be added to again, and sums that it begins in a cycle.
    latency: int = 4
    adders: int = 2


CORE = Core()


def hardware_of(target: TargetSpec) -> Hardware:
    """Return the facts of a target's device."""
    return HARDWARE[target.device.name]
