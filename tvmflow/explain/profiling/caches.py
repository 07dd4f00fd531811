"""The caches of this machine's processors, as Linux describes them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True)
class Cache:
    """A level of the cache hierarchy that holds data."""

    #: ``L1``, ``L2``, ...
    name: str
    #: Share of each thread while all threads compute.
    thread_bytes: int
    #: Sum of the threads' shares.
    capacity_bytes: int


def cpu_caches(threads: int) -> list[Cache]:
    """Return the levels that hold data, the smallest first, for a number of computing threads.

    All processors are assumed to be like the first.  A level is left out if a thread's share of it
    is less than four times that of the level before, because few working sets fit it alone, or if
    the system does not describe it; the result may be empty.
    """
    found: list[Cache] = []
    for level, size, sharing in sorted(_described()):
        own = size // min(sharing, threads)
        if not found or own >= 4 * found[-1].thread_bytes:
            found.append(Cache(f"L{level}", own, own * threads))
    return found


def _described() -> list[tuple[int, int, int]]:
    """Return level, bytes and number of sharing processors for the first processor's caches."""
    described = []
    with suppress(OSError):
        for folder in _CACHES.glob("index[0-9]*"):
            with suppress(OSError, ValueError, KeyError):
                facts = {
                    name: (folder / name).read_text(encoding="ascii").strip()
                    for name in ("type", "level", "size", "shared_cpu_list")
                }
                size = int(facts["size"][:-1]) * _UNITS[facts["size"][-1:]]
                if facts["type"] != "Instruction" and size > 0:
                    described.append((int(facts["level"]), size, _count(facts["shared_cpu_list"])))
    return described


def _count(processors: str) -> int:
    """Return the number of processors in a list such as ``0-3,8``."""
    ranges = [[int(end) for end in part.split("-")] for part in processors.split(",")]
    return sum(ends[-1] - ends[0] + 1 for ends in ranges)
