"""The index of a journal: where the best trial of each workload stands, and definitions.

A :class:`Table` is built while trials are read or appended.  Packed, it is a frame of the file:
who opens the file later takes it from there, and reads only what follows it.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from .packing import MalformedError

#: What an index begins with; the last one of a file is found by searching it from the end.
MARKER = b"\xd7TVJIDX\n"
_HEAD = struct.Struct("<8sQQII")
_DEFINITION = struct.Struct("<8sQ")
_ENTRY = struct.Struct("<8s16s8sdQIII")


@dataclass(slots=True)
class Entry:
    """The trials of a workload on targets of one kin."""

    kin: bytes
    workload: bytes
    target: bytes
    #: The least cost, and the trial that has it: offset of its frame and place in its block.
    cost: float = float("inf")
    offset: int = 0
    slot: int = 0
    trials: int = 0
    failures: int = 0

    def add(self, cost: float, offset: int, slot: int) -> None:
        """Count a trial."""
        self.trials += 1
        if cost == float("inf"):
            self.failures += 1
        if cost < self.cost:
            self.cost, self.offset, self.slot = cost, offset, slot


class Table:
    """What an index says, growing."""

    def __init__(self) -> None:
        self.definitions: dict[bytes, int] = {}
        self.events = 0
        self._kins: dict[bytes, dict[tuple[bytes, bytes], Entry]] = defaultdict(dict)

    def entry(self, kin: bytes, workload: bytes, target: bytes) -> Entry:
        """That of a workload, made if it is not there."""
        kins = self._kins[kin]
        if (entry := kins.get((workload, target))) is None:
            entry = kins[workload, target] = Entry(kin, workload, target)
        return entry

    def of_kin(self, kin: bytes) -> Iterable[Entry]:
        """Entries of all workloads of a kin."""
        return self._kins.get(kin, {}).values()

    def __iter__(self) -> Iterator[Entry]:
        for kins in self._kins.values():
            yield from kins.values()

    @classmethod
    def unpack(cls, payload: memoryview) -> Table:
        """The table that an index holds.

        Raises
        ------
        MalformedError
            If its size is not what it says.
        """
        if len(payload) < _HEAD.size:
            raise MalformedError("an index is cut")
        _, _, events, definitions, entries = _HEAD.unpack_from(payload)
        middle = _HEAD.size + definitions * _DEFINITION.size
        if len(payload) != middle + entries * _ENTRY.size:
            raise MalformedError("an index has another size than it says")
        table = cls()
        table.events = events
        table.definitions = dict(_DEFINITION.iter_unpack(payload[_HEAD.size : middle]))
        for row in _ENTRY.iter_unpack(payload[middle:]):
            kin, workload, target = row[:3]
            table._kins[kin][workload, target] = Entry(*row)
        return table

    def pack(self, previous: int) -> bytes:
        """The payload of an index's frame; ``previous`` is the offset of the one before."""
        entries = sorted(self, key=lambda e: (e.kin, e.workload, e.target))
        counts = len(self.definitions), len(entries)
        parts = [_HEAD.pack(MARKER, previous, self.events, *counts)]
        parts += [_DEFINITION.pack(*item) for item in sorted(self.definitions.items())]
        parts += [
            _ENTRY.pack(
                *(e.kin, e.workload, e.target, e.cost, e.offset, e.slot, e.trials, e.failures)
            )
            for e in entries
        ]
        return b"".join(parts)
