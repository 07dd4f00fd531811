"""What a kernel's time and counts say against the ceilings of its device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .record import Ceilings, KernelLaunch

#: A kernel that takes less than this many empty launches is held back by launching.
LAUNCHES = 2.0
#: From this part of a ceiling on, that ceiling is what holds a kernel back.
BUSY = 0.4
#: What is above a ceiling by less than this factor is at it.
_NOISE = 1.1


def rated(kernel: KernelLaunch, ceilings: Ceilings | None) -> KernelLaunch:
    """A kernel with its rates, its part of the roofline, and what holds it back.

    Parameters
    ----------
    kernel
        With its time, and its counts where they are known.
    ceilings
        Of the device; without them there are rates only.
    """
    if kernel.flops is None or kernel.bytes_read is None or kernel.bytes_written is None:
        return replace(kernel, bound=_bound(kernel, ceilings, 0.0, 0.0))
    moved = kernel.bytes_read + kernel.bytes_written
    ns = kernel.median_us * 1e3
    kernel = replace(
        kernel,
        gflops=kernel.flops / ns if ns else None,
        gbps=moved / ns if ns else None,
        intensity=kernel.flops / moved if moved else None,
    )
    if ceilings is None or kernel.gflops is None or kernel.gbps is None:
        # Clocks of some devices are too coarse for the shortest kernels: they take no time.
        return replace(kernel, bound=_bound(kernel, ceilings, 0.0, 0.0))
    computing = kernel.gflops / peak_gflops(kernel.arithmetic, ceilings)
    moving = kernel.gbps / peak_gbps(kernel.memory, ceilings)
    return replace(
        kernel,
        roofline_share=roofline_share(computing, moving),
        bound=_bound(kernel, ceilings, computing, moving),
    )


def above(kernels: Sequence[KernelLaunch], ceilings: Ceilings) -> list[KernelLaunch]:
    """Kernels that compute faster than their ceiling: it was measured on a busy machine.

    Not those that move more than a copy does, which caches explain.
    """
    return [
        kernel
        for kernel in kernels
        if kernel.gflops is not None and is_above(kernel.gflops, kernel.arithmetic, ceilings)
    ]


def is_above(gflops: float, arithmetic: str, ceilings: Ceilings) -> bool:
    """Whether a rate is more than its ceiling, and not only by noise."""
    return gflops > _NOISE * peak_gflops(arithmetic, ceilings)


def roofline_share(computing: float, moving: float) -> float:
    """Part of what the lower ceiling allows, from the parts of both."""
    # What stays in a cache is faster than memory: a part is at most 1.
    return min(1.0, max(computing, moving))


def peak_gflops(arithmetic: str, ceilings: Ceilings) -> float:
    """The ceiling of a kind of arithmetic; that of fp32 where a device has no other."""
    known = {"fp16": ceilings.fp16_gflops, "int8": ceilings.int8_gops}
    return known.get(arithmetic) or ceilings.fp32_gflops


def peak_gbps(memory: str, ceilings: Ceilings) -> float:
    """The ceiling of a kind of memory; that of copies where textures were not measured."""
    return (ceilings.texture_gbps if memory == "texture" else None) or ceilings.copy_gbps


def _bound(
    kernel: KernelLaunch, ceilings: Ceilings | None, computing: float, moving: float
) -> str | None:
    if ceilings is None:
        return None
    if kernel.median_us < LAUNCHES * ceilings.launch_us:
        return "launch"
    if kernel.flops is None:
        return None
    if max(computing, moving) < BUSY:
        return "latency"
    return "arithmetic" if computing > moving else "bandwidth"
