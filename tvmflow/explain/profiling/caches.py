"""The caches of this machine's processors, as Linux describes them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True)
class Cache:
    """A level that holds data."""

    #: ``L1``, ``L2``, ...
    name: str
    #: What a thread has of it where all of them compute.
    thread_bytes: int
    #: What all threads have together.
    capacity_bytes: int


def cpu_caches(threads: int) -> list[Cache]:
    """The levels that hold data, the smallest first, for so many computing threads.

    All processors are taken for ones as the first.  A level of which a thread has less than four
    times what the level before it has is left out, as little fits it alone.  So are those that the
    system says nothing of, which may be all.
    """
    found: list[Cache] = []
    for level, size, sharing in sorted(_described()):
        own = size // min(sharing, threads)
        if not found or own >= 4 * found[-1].thread_bytes:
            found.append(Cache(f"L{level}", own, own * threads))
    return found


def _described() -> list[tuple[int, int, int]]:
    """Level, bytes, and how many processors share it, of each cache of the first processor."""
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
    """How many there are in a list such as ``0-3,8``."""
    ranges = [[int(end) for end in part.split("-")] for part in processors.split(",")]
    return sum(ends[-1] - ends[0] + 1 for ends in ranges)
