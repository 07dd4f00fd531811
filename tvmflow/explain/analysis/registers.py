"""Register pressure: what a work-item keeps, and what the driver says it needed.

Private arrays are registers where every index is a constant, as after unrolling; an array
whose index is a work-item's, or a long loop's, has an address and so is memory.  Registers hold
all of an array that is summed up, or written in other loops than it is read; others are copies,
which compilers make as late as they need them.  To these arrays an item adds, by estimate: two
registers for the address of each tensor, one for each loop and each axis of its own index, and
two operands of the widest access.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from shutil import which
from tempfile import TemporaryDirectory

import tvm_ffi
from tvm import tirx

from ...devices.target import TargetSpec
from ..profiling.record import Finding
from .hardware import Hardware, hardware_of
from .lowered import Kernel, kernels_of
from .sites import Site

#: Loops of up to as many steps are unrolled by drivers, even if the code does not say so.
_UNROLLED = 16
_WORD = 4
#: Scope of sums of tensor cores.
_SUMS = "wmma.accumulator"


@dataclass(frozen=True)
class RegisterUse:
    """What a work-item of a kernel keeps, by estimate."""

    kernel: str
    #: 32-bit registers.
    registers: int
    #: 32-bit registers that a work-item can have.
    limit: int
    #: Of these, in private arrays that are no mere copies.
    array_registers: int
    #: Private arrays that are memory, as their indices are no constants.
    indexed: tuple[str, ...]
    #: Bytes of those, for each work-item.
    memory_bytes: int
    #: Bytes that do not fit into registers, for each work-item.
    spilled_bytes: int


@dataclass(frozen=True)
class Reported:
    """What NVIDIA's assembler says of a kernel."""

    #: 32-bit registers of a thread.
    registers: int
    #: Bytes that a thread writes to memory for want of registers.
    spilled_bytes: int


def registers(function: tirx.PrimFunc | Kernel, target: TargetSpec) -> list[RegisterUse]:
    """Estimate how many registers a work-item needs.

    Parameters
    ----------
    function
        A scheduled primary function, or one of its kernels.
    target
        What it is compiled for.

    Returns
    -------
    list of RegisterUse
        One for each kernel.
    """
    hardware = hardware_of(target)
    return [_use(kernel, hardware) for kernel in kernels_of(function, target)]


def reported_registers(source: str, arch: str) -> dict[str, Reported]:
    """Ask NVIDIA's assembler what kernels need.

    Parameters
    ----------
    source
        CUDA C++.
    arch
        Architecture such as ``sm_80``.

    Returns
    -------
    dict
        By the name of the kernel; empty where ``nvcc`` is not installed or refuses the source.
    """
    if which("nvcc") is None:
        return {}
    with TemporaryDirectory() as folder:
        (Path(folder) / "kernels.cu").write_text(source)
        command = ["nvcc", f"-arch={arch}", "-cubin", "-Xptxas", "-v", "kernels.cu"]
        run = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    found = {}
    for part in run.stderr.split("Compiling entry function '")[1:]:
        used = re.search(r"Used (\d+) registers", part)
        spilled = re.search(r"(\d+) bytes spill stores", part)
        if used and spilled:
            name = part.split("'", 1)[0]
            found[name] = Reported(int(used.group(1)), int(spilled.group(1)))
    return found


def _use(kernel: Kernel, hardware: Hardware) -> RegisterUse:
    limit, wave = hardware.registers_each, hardware.wave
    private = [buffer for buffer in kernel.allocated if str(buffer.scope()) in ("local", _SUMS)]
    items = {var for var, _ in kernel.launch.values()}
    array_bytes = memory_bytes = 0
    indexed = []
    for buffer in private:
        dtype = tvm_ffi.dtype(buffer.dtype)
        size = prod(int(n) for n in buffer.shape) * dtype.lanes * dtype.bits // 8
        if str(buffer.scope()) == _SUMS:
            # A tile of tensor cores is spread over the items of a wave.
            array_bytes += size // wave
            continue
        sites = [site for site in kernel.sites if site.buffer.same_as(buffer)]
        if _has_address(sites, items):
            indexed.append(str(buffer.name))
            memory_bytes += size
        elif buffer in kernel.sums or len({site.place.loops for site in sites}) > 1:
            array_bytes += size
    tensors = {s.name for s in kernel.sites if s.scope.startswith("global")}
    loops = max((len(site.place.loops) for site in kernel.sites), default=0)
    axes = sum(extent > 1 for _, extent in kernel.launch.values())
    widest = max((site.lanes * site.element_bytes for site in kernel.sites), default=0)
    arrays = -(-array_bytes // _WORD)
    total = arrays + 2 * len(tensors) + loops + axes + 2 * -(-widest // _WORD)
    return RegisterUse(
        kernel.name,
        total,
        limit,
        arrays,
        tuple(indexed),
        memory_bytes,
        max(0, total - limit) * _WORD,
    )


def _has_address(sites: Iterable[Site], items: set[object]) -> bool:
    """Whether an array is accessed at places that are no constants, even with loops unrolled."""
    for site in sites:
        long = {var for var, extent in site.place.loops if extent > _UNROLLED}
        short = {var for var, _ in site.place.loops} - long
        if any(var not in short or var in items for var in site.variables):
            return True
    return False


def register_findings(function: tirx.PrimFunc | Kernel, target: TargetSpec) -> list[Finding]:
    """Kernels whose items keep more than registers hold."""
    findings = []
    for kernel in kernels_of(function, target):
        (use,) = registers(kernel, target)
        items = kernel.groups * kernel.group_size
        # On a CPU the first cache has them; sums in memory are found by :mod:`.accumulators`.
        if use.indexed and not target.device.is_cpu:
            names = ", ".join(use.indexed)
            sites = [s for s in kernel.sites if s.name in use.indexed]
            findings.append(
                Finding(
                    kernel.name,
                    "registers",
                    str(sites[0]),
                    kernel.line(*sites),
                    {"bytes": float(use.memory_bytes * items)},
                    use.memory_bytes / (use.memory_bytes + use.registers * _WORD),
                    f"The private array {names} is memory, {use.memory_bytes:,} bytes for each "
                    "work-item: its index is no constant.",
                    "Unroll the loops that its index depends on, or give it an axis less.",
                )
            )
        if use.spilled_bytes:
            arrays = [s for s in kernel.sites if s.scope == "local"]
            findings.append(
                Finding(
                    kernel.name,
                    "registers",
                    str(arrays[0]) if arrays else "",
                    kernel.line(*arrays),
                    {"bytes": float(use.spilled_bytes * items)},
                    1 - use.limit / use.registers,
                    f"A work-item needs about {use.registers} registers of 32 bits, and has at "
                    f"most {use.limit}: about {use.spilled_bytes:,} bytes are kept in memory.",
                    "Make the tile that an item computes smaller.",
                )
            )
    return findings
