"""What CUDA tells of a GPU, and OpenCL does not."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Multiprocessors:
    """Facts about them that schedules depend on."""

    #: How many there are.
    count: int
    #: Shared memory that one work-group may have.
    shared_bytes: int
    #: Whether products of 16×16 halves are one instruction.
    tensor_cores: bool
    #: Whether memory is copied to shared memory while the group computes (``cp.async``).
    async_copies: bool


def first_gpu() -> tuple[str, int]:
    """Architecture and multiprocessors of the first GPU, or those of an A100."""
    import tvm

    from ..runtime.devices import exists

    gpu = tvm.cuda(0)
    if not exists(gpu):
        return "sm_80", 108
    return "sm_" + str(gpu.compute_version).replace(".", ""), int(gpu.multi_processor_count)


def multiprocessors(arch: str, count: int) -> Multiprocessors:
    """What an architecture has, by the CUDA C++ Programming Guide's table of capabilities.

    Of shared memory, the least that GPUs have which run its code: 99 KiB since 8.0.
    """
    version = int(arch.removeprefix("sm_"))
    kib = 99 if version >= 80 else 64 if version >= 75 else 96 if version >= 70 else 48
    return Multiprocessors(count, kib * 1024, version >= 70, version >= 80)
