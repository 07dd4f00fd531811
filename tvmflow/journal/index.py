"""Index of a journal: offsets of definitions and of the best trial of each workload."""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass

from .encoding import MalformedError
from .records import Target, Workload

#: First bytes of an index; the last index of a file is found by a search from the end.
MARKER = b"\xd7TVJIDX\n"
_INDEX_HEAD = struct.Struct("<8sQQII")
_INDEX_DEFINITION = struct.Struct("<8sQ")
_INDEX_ENTRY = struct.Struct("<8s16s8sdQIII")


@dataclass(slots=True)
class Entry:
    """Statistics of a workload's trials on targets with the same compatibility key."""

    compatibility_key: bytes
    workload: bytes
    target: bytes
    #: The lowest cost, and its trial: offset of its frame, and slot in the block.
    cost: float = float("inf")
    offset: int = 0
    slot: int = 0
    trials: int = 0
    failures: int = 0


class Table:
    """Offsets of definitions and of the best trial of each workload.

    The table grows while trials are read or appended.  Packed, it is the index, a frame of the
    file: later readers load it, and only read the frames after it.
    """

    def __init__(self) -> None:
        self.definitions: dict[bytes, int] = {}
        self.events = 0
        self._by_key: dict[bytes, dict[tuple[bytes, bytes], Entry]] = defaultdict(dict)

    def add(self, workload: Workload, target: Target, cost: float, offset: int, slot: int) -> None:
        """Count a trial in the frame at ``offset``, in the slot ``slot`` of its block."""
        entries = self._by_key[workload.compatibility_key]
        key = workload.key, target.compatibility_key
        if (entry := entries.get(key)) is None:
            entry = entries[key] = Entry(workload.compatibility_key, *key)
        entry.trials += 1
        entry.failures += cost == float("inf")
        if cost < entry.cost:
            entry.cost, entry.offset, entry.slot = cost, offset, slot

    def compatible(self, key: bytes) -> Iterable[Entry]:
        """Return the entries of all workloads with this compatibility key."""
        return self._by_key.get(key, {}).values()

    def __iter__(self) -> Iterator[Entry]:
        for entries in self._by_key.values():
            yield from entries.values()

    @classmethod
    def unpack(cls, payload: memoryview) -> Table:
        """Return the table that an index contains."""
        if len(payload) < _INDEX_HEAD.size:
            raise MalformedError("an index is cut")
        _, _, events, definitions, entries = _INDEX_HEAD.unpack_from(payload)
        middle = _INDEX_HEAD.size + definitions * _INDEX_DEFINITION.size
        if len(payload) != middle + entries * _INDEX_ENTRY.size:
            raise MalformedError("an index has another size than its counts give")
        table = cls()
        table.events = events
        table.definitions = dict(_INDEX_DEFINITION.iter_unpack(payload[_INDEX_HEAD.size : middle]))
        for row in _INDEX_ENTRY.iter_unpack(payload[middle:]):
            key, workload, target = row[:3]
            table._by_key[key][workload, target] = Entry(*row)
        return table

    def pack(self, previous: int) -> bytes:
        """Return an index's payload; ``previous`` is the offset of the previous index."""
        entries = sorted(self, key=lambda e: (e.compatibility_key, e.workload, e.target))
        counts = len(self.definitions), len(entries)
        parts = [_INDEX_HEAD.pack(MARKER, previous, self.events, *counts)]
        parts += [_INDEX_DEFINITION.pack(*item) for item in sorted(self.definitions.items())]
        parts += [_INDEX_ENTRY.pack(*astuple(entry)) for entry in entries]
        return b"".join(parts)
