"""Local memory: reuse of its data, and bank conflicts.

Consecutive words of four bytes in local (shared) memory are in consecutive banks.  Work-items that
access different words of one bank wait for each other; one word for several items is one access::

    tile[item]             32 items, 32 banks: one cycle
    tile[item * 32]        32 items, 32 words of one bank: 32 cycles
    tile[item * 33]        rows padded by a word: one cycle
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tvm import tirx

from ...devices.target import TargetSpec
from ...ir.evaluate import Array, UnknownError
from ...ir.traffic import buffer_bytes
from ..profiling.record import Finding
from .accesses import Site
from .executions import instructions, places_at, wave_instructions
from .hardware import hardware_of
from .lowered import InKernel, LoweredKernel, of_kernels

#: Bytes of a bank's word.
_WORD = 4
#: Cycles relative to those without conflicts, from which on there is a finding.
_GOOD = 1.25


@dataclass(frozen=True)
class BankAccess(InKernel):
    """Bank conflicts of an access to local memory."""

    is_store: bool
    #: Sum of the instructions of all work-items.
    instructions: int
    #: Cycles of the banks, for all waves.
    cycles: int
    #: Cycles of as many contiguous elements.
    least_cycles: int
    #: Largest number of words requested from one bank at a time; 1 is no conflict.
    degree: int


@dataclass(frozen=True)
class LocalMemory:
    """Use of a buffer in local memory."""

    kernel: str
    #: Name of the buffer, or of all buffers that share the memory in turn.
    buffer: str
    #: Line of the first write in the text of the scheduled function.
    line: int
    #: Size of the buffer in each work-group.
    bytes: int
    #: Elements that all work-items write, and read.
    writes: int
    reads: int
    #: Reads per written element.
    reuse: float
    #: Whether items only read elements that they wrote themselves.
    is_private: bool


@of_kernels
def bank_conflicts(kernel: LoweredKernel, target: TargetSpec) -> Iterator[BankAccess]:
    """Find how long the banks of local memory take for each access.

    There are no records without dedicated local memory (``cpu`` and ``mali``).
    """
    hardware = hardware_of(target)
    for site in kernel.sites:
        if hardware.banks == 1 or not site.scope.startswith("shared"):
            continue
        count = instructions(kernel, site)
        cycles = least = count / hardware.wave
        degree = 1
        with suppress(UnknownError):
            waves, parts = places_at(kernel, site, hardware.wave)
            cycles = least = 0.0
            for part in parts:
                words, active = _phases(part, waves.active, site.element_bytes, hardware.banks)
                busiest, distinct = _banks(words, active, hardware.banks)
                cycles += busiest.sum() * waves.weight
                least += np.ceil(distinct / hardware.banks).sum() * waves.weight
                degree = max(degree, int(np.max(busiest, initial=1)))
        yield BankAccess(
            *kernel.at(site),
            is_store=site.is_store,
            instructions=count,
            cycles=round(cycles),
            least_cycles=round(least),
            degree=degree,
        )


@of_kernels
def local_memory(kernel: LoweredKernel, target: TargetSpec) -> Iterator[LocalMemory]:
    """Find how much local memory each buffer takes, and how often its elements are used."""
    for buffer in local_buffers(kernel):
        sites = [site for site in kernel.sites if site.buffer.same_as(buffer)]
        stores = [site for site in sites if site.is_store]
        loads = [site for site in sites if not site.is_store]
        writes, reads = (
            sum(instructions(kernel, site) * site.run for site in of) for of in (stores, loads)
        )
        read = set(map(_places, loads))
        items = {var for var, extent in kernel.items if extent > 1}
        own = all(items <= store.variables for store in stores)
        yield LocalMemory(
            kernel=kernel.name,
            buffer=", ".join(dict.fromkeys(site.name for site in sites)) or str(buffer.name),
            line=kernel.line(*stores, *loads),
            bytes=buffer_bytes(buffer),
            writes=writes,
            reads=reads,
            reuse=reads / max(1, writes),
            is_private=own and bool(read) and read <= set(map(_places, stores)),
        )


def local_buffers(kernel: LoweredKernel) -> list[tirx.Buffer]:
    """Return the buffers in the local memory of a work-group."""
    return [buffer for buffer in kernel.allocated if str(buffer.scope()).startswith("shared")]


def _places(site: Site) -> tuple[str, ...]:
    """Return an index as text, with the extents of its loops, whose names may repeat."""
    loops = (f"{v.name} {extent}" for v, extent in site.context.loops if v in site.variables)
    return str(site), *loops


def _phases(
    places: Array, active: NDArray[np.bool_], element_bytes: int, banks: int
) -> tuple[Array, NDArray[np.bool_]]:
    """Return the requested words, in rows that the banks serve at a time, and the active ones.

    If items request 16 bytes, only so many are served at a time as request a word of each bank.
    Smaller elements share words.
    """
    each = max(1, element_bytes // _WORD)
    words = (places * element_bytes // _WORD)[..., None] + np.arange(each)
    words = words.reshape(*places.shape[:2], -1)
    bytes_ = places.shape[2] * element_bytes
    items = max(1, min(words.shape[1], banks * _WORD // bytes_))
    rows = words.reshape(-1, items * words.shape[2])
    mask = np.repeat(active.reshape(-1, items), words.shape[2], axis=1)
    return rows, mask


def _banks(words: Array, active: NDArray[np.bool_], banks: int) -> tuple[Array, Array]:
    """Count the different words of the busiest bank, and of all banks, in each row."""
    ordered = np.sort(np.where(active, words, -1), axis=1)
    first = np.diff(ordered, axis=1, prepend=-1) != 0
    row = np.broadcast_to(np.arange(len(words))[:, None], words.shape)
    cells = (row * banks + ordered % banks)[first]
    loads = np.bincount(cells, minlength=len(words) * banks).reshape(-1, banks)
    return loads.max(axis=1), loads.sum(axis=1)


def bank_findings(kernel: LoweredKernel, target: TargetSpec) -> Iterator[Finding]:
    """Find accesses to local memory whose work-items wait for one bank."""
    accesses = bank_conflicts(kernel, target)
    # An instruction takes a cycle of its wave, plus its bank conflicts.
    cycles = wave_instructions(kernel, hardware_of(target).wave)
    cycles += sum(access.cycles - access.least_cycles for access in accesses)
    for access in accesses:
        extra = access.cycles - access.least_cycles
        if access.cycles >= _GOOD * access.least_cycles:
            yield access.finding(
                "bank-conflicts",
                {"cycles": float(extra)},
                extra / cycles,
                f"Up to {access.degree} items access different words of one bank of "
                f"{access.buffer}: {access.cycles:,} cycles instead of {access.least_cycles:,}.",
                "Pad its rows by a word (by a vector, where vectors are read), so that "
                "neighbours are in different banks, or swap the axes of the tile.",
            )


def local_memory_findings(kernel: LoweredKernel, target: TargetSpec) -> Iterator[Finding]:
    """Find copies to local memory that gain nothing."""
    buffers = local_memory(kernel, target)
    for buffer in buffers:
        if buffer.is_private:
            yield Finding(
                *(buffer.kernel, "local-memory", buffer.buffer, buffer.line),
                {"bytes": float(buffer.bytes)},
                buffer.bytes / sum(one.bytes for one in buffers),
                f"Work-items only read what they have written themselves to {buffer.buffer}, "
                f"{buffer.bytes:,} bytes of local memory.",
                "Keep it in private memory (scope local): no barrier is needed, and more "
                "work-groups fit.",
            )
