"""A journal's file, mapped into memory: frames, definitions, the index and what follows it."""

from __future__ import annotations

import logging
import mmap
import os
import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import NamedTuple

from .encoding import (
    SHORT,
    Context,
    K,
    MalformedError,
    MissingError,
    parse,
    read_keyed,
    trial_cost,
    unpack_block,
    unpack_definition,
    unpack_trial,
)
from .frames import (
    BLOCK,
    DEFINITION,
    EVENT,
    FRAME_BYTES,
    HEADER_BYTES,
    INDEX,
    TAIL,
    TRIAL,
    Damage,
    Frame,
    check_header,
    frame_at,
    frames,
)
from .records import Device, Keyed, Target, Trial, Workload

logger = logging.getLogger(__name__)

# -- the index ----------------------------------------------------------------------------------

#: What an index begins with; the last one of a file is found by searching it from the end.
MARKER = b"\xd7TVJIDX\n"
_INDEX_HEAD = struct.Struct("<8sQQII")
_INDEX_DEFINITION = struct.Struct("<8sQ")
_INDEX_ENTRY = struct.Struct("<8s16s8sdQIII")


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


class Table:
    """Where the best trial of each workload stands, and definitions.

    It grows while trials are read or appended.  Packed, it is the index, a frame of the file: who
    opens the file later takes it from there, and reads only what follows it.
    """

    def __init__(self) -> None:
        self.definitions: dict[bytes, int] = {}
        self.events = 0
        self._kins: dict[bytes, dict[tuple[bytes, bytes], Entry]] = defaultdict(dict)

    def add(self, workload: Workload, target: Target, cost: float, offset: int, slot: int) -> None:
        """Count a trial, which stands in the frame at ``offset``, at the place ``slot``."""
        entries, key = self._kins[workload.kin], (workload.key, target.kin)
        if (entry := entries.get(key)) is None:
            entry = entries[key] = Entry(workload.kin, *key)
        entry.trials += 1
        entry.failures += cost == float("inf")
        if cost < entry.cost:
            entry.cost, entry.offset, entry.slot = cost, offset, slot

    def of_kin(self, kin: bytes) -> Iterable[Entry]:
        """Entries of all workloads of a kin."""
        return self._kins.get(kin, {}).values()

    def __iter__(self) -> Iterator[Entry]:
        for kins in self._kins.values():
            yield from kins.values()

    @classmethod
    def unpack(cls, payload: memoryview) -> Table:
        """Return the table that an index holds."""
        if len(payload) < _INDEX_HEAD.size:
            raise MalformedError("an index is cut")
        _, _, events, definitions, entries = _INDEX_HEAD.unpack_from(payload)
        middle = _INDEX_HEAD.size + definitions * _INDEX_DEFINITION.size
        if len(payload) != middle + entries * _INDEX_ENTRY.size:
            raise MalformedError("an index has another size than it says")
        table = cls()
        table.events = events
        table.definitions = dict(_INDEX_DEFINITION.iter_unpack(payload[_INDEX_HEAD.size : middle]))
        for row in _INDEX_ENTRY.iter_unpack(payload[middle:]):
            kin, workload, target = row[:3]
            table._kins[kin][workload, target] = Entry(*row)
        return table

    def pack(self, previous: int) -> bytes:
        """Return an index's payload; ``previous`` is the offset of the one before."""
        entries = sorted(self, key=lambda e: (e.kin, e.workload, e.target))
        counts = len(self.definitions), len(entries)
        parts = [_INDEX_HEAD.pack(MARKER, previous, self.events, *counts)]
        parts += [_INDEX_DEFINITION.pack(*item) for item in sorted(self.definitions.items())]
        parts += [_INDEX_ENTRY.pack(*astuple(entry)) for entry in entries]
        return b"".join(parts)


# -- the file -----------------------------------------------------------------------------------


class Record(NamedTuple):
    """A trial or an event where it stands: in a frame, or at a place of a block."""

    offset: int
    kind: int
    #: Its place in the block; 0 where it is the frame itself.
    slot: int
    payload: memoryview


class Store:
    """What can be read of an opened journal; whoever opened its descriptor closes it.

    Raises `JournalError` if it is no journal of this version.
    """

    def __init__(self, path: Path, fd: int):
        self.path = path
        self._fd = fd
        self._view = self._map()
        self._forget()
        #: Bytes that were found damaged so far.  Only reading all of them finds everything.
        self.damage: list[Damage] = []
        #: Bytes behind the last whole record: one that is being written, or was cut.
        self.tail: Damage | None = None
        if (broken := check_header(self._view, path)) is not None:
            self._report(broken)
        #: Where the last index begins and ends.
        self.index_at = self.indexed_to = HEADER_BYTES
        self._take_last_index()
        self._read(self.indexed_to)

    def _forget(self) -> None:
        #: What the journal holds: its last index, and what follows that.
        self.table = Table()
        #: Definitions that need not be read again, by key, and contexts by its first bytes.
        self._known: dict[bytes, Keyed] = {}
        self._contexts: dict[bytes, Context] = {}
        #: Definitions of blocks that were unpacked, by the block's offset.
        self._blocks: dict[int, dict[bytes, memoryview]] = {}

    def _map(self) -> memoryview:
        size = os.fstat(self._fd).st_size
        # What others append later is not looked at; what is mapped never changes.
        return memoryview(mmap.mmap(self._fd, size, access=mmap.ACCESS_READ) if size else b"")

    def remap(self) -> None:
        """See what was appended after the file was opened."""
        self._view = self._map()

    def frame(self, offset: int) -> Frame | None:
        """Return the frame at an offset, also one that was appended after the file was opened."""
        if offset >= len(self._view):
            self.remap()
        return frame_at(self._view, offset)

    def _take_last_index(self) -> None:
        mapped = self._view.obj
        end = len(self._view)
        while isinstance(mapped, mmap.mmap) and (at := mapped.rfind(MARKER, 0, end)) >= 0:
            frame = frame_at(self._view, at - FRAME_BYTES)
            if frame is not None and frame.kind == INDEX:
                try:
                    self.table = Table.unpack(frame.payload)
                    self.index_at, self.indexed_to = frame.offset, frame.end
                    return
                except MalformedError as error:
                    self._report(Damage(frame.offset, len(frame.payload), str(error)))
            end = at

    def _read(self, start: int) -> None:
        """Take up what stands behind ``start`` in the table."""
        self.tail = None
        records = list(self.records(start))
        trials = [record for record in records if record.kind == TRIAL]
        self.table.events += len(records) - len(trials)
        # At last: a trial may refer to a definition whose first copy is damaged.
        for record in trials:
            try:
                short, cost = trial_cost(record.payload)
                context = self.context(short)
                self.table.add(context.workload, context.target, cost, record.offset, record.slot)
            except MalformedError as error:
                if isinstance(error, MissingError) and start > HEADER_BYTES:
                    # A definition that the index knows is damaged: there may be a copy.
                    self.read_all()
                    return
                self.report(record, error)

    def read_all(self) -> None:
        """Forget the index and read every frame, because the index proved wrong."""
        self._forget()
        self.damage = []
        self._view = self._map()
        self._read(HEADER_BYTES)

    # -- definitions ---------------------------------------------------------------------------

    def context(self, short: bytes) -> Context:
        """Return the context with a key that begins so; `MissingError` without it or its parts."""
        if (context := self._contexts.get(short)) is None:
            data = self._data("context", short)
            if len(data) != 80:
                raise MalformedError("a context refers to another number of definitions")
            keys = [data[at : at + 16] for at in range(0, 80, 16)]
            toolchain, skeleton = self._data("toolchain", keys[3]), self._data("skeleton", keys[4])
            versions = parse(toolchain)
            if not isinstance(versions, dict) or not isinstance(parse(skeleton), list):
                raise MalformedError("a toolchain or a skeleton is not of its form")
            context = self._contexts[short] = Context(
                self.keyed(Workload, keys[0]),
                self.keyed(Target, keys[1]),
                self.keyed(Device, keys[2]),
                versions,
                skeleton,
            )
        return context

    def keyed(self, cls: type[K], key: bytes) -> K:
        """Return a workload, target or device; `MissingError` where it is damaged or not there."""
        if not isinstance(value := self._known.get(key), cls):
            value = read_keyed(cls, self._data(cls.kind_of_definition(), key))
            self._known[key] = value
        return value

    def workload(self, key: bytes) -> Workload | None:
        """A workload by its key, ``None`` where its definition is damaged."""
        try:
            return self.keyed(Workload, key)
        except MissingError:
            return None

    def _data(self, kind: str, key: bytes) -> bytes:
        payload = self.definition(key[:SHORT])
        if payload is not None:
            found, whole, data = unpack_definition(payload)
            if found == kind and whole.startswith(key):
                return data
        raise MissingError(f"its {kind} {key.hex()} is not there")

    def definition(self, short: bytes) -> memoryview | None:
        """The payload of a definition; ``None`` where it is damaged or not there."""
        offset = self.table.definitions.get(short)
        frame = self.frame(offset) if offset is not None else None
        if frame is not None and frame.kind == DEFINITION:
            return frame.payload
        if frame is None or frame.kind != BLOCK:
            return None
        if frame.offset not in self._blocks:
            try:
                items = [payload for kind, payload in _items(frame) if kind == DEFINITION]
                keys = [unpack_definition(payload)[1][:SHORT] for payload in items]
            except MalformedError:
                return None
            self._blocks[frame.offset] = dict(zip(keys, items, strict=True))
        return self._blocks[frame.offset].get(short)

    # -- records -------------------------------------------------------------------------------

    def records(self, start: int = HEADER_BYTES) -> Iterator[Record]:
        """Trials and events in the order of the file; definitions are taken up on the way.

        Damage is reported and skipped.  Types of frames that a newer minor version may have
        added are skipped.
        """
        for item in frames(self._view, start):
            if isinstance(item, Damage):
                if item.reason == TAIL:
                    self.tail = item
                else:
                    self._report(item)
                continue
            try:
                for slot, (kind, payload) in enumerate(_items(item)):
                    if kind == DEFINITION:
                        _, key, _ = unpack_definition(payload)
                        self.table.definitions.setdefault(key[:SHORT], item.offset)
                    elif kind in (TRIAL, EVENT):
                        yield Record(item.offset, kind, slot, payload)
            except MalformedError as error:
                self._report(Damage(item.offset, len(item.payload), str(error)))

    def trial_at(self, offset: int, slot: int) -> Trial | None:
        """A trial by its place; ``None`` where there is none any more."""
        frame = self.frame(offset)
        try:
            if frame is None or frame.kind not in (TRIAL, BLOCK):
                return None
            return self.unpack(_items(frame)[slot][1])
        except (MalformedError, IndexError) as error:
            logger.debug("%s: the trial at %d is damaged: %s", self.path, offset, error)
            return None

    def unpack(self, payload: memoryview) -> Trial:
        """Return a trial; `MalformedError` if it or its context is damaged."""
        return unpack_trial(payload, self.context(bytes(payload[:SHORT])))

    def report(self, record: Record, error: MalformedError) -> None:
        """Note a record that cannot be used."""
        self._report(Damage(record.offset, len(record.payload), str(error)))

    def _report(self, damage: Damage) -> None:
        if damage not in self.damage:
            self.damage.append(damage)
            logger.warning("%s is damaged: %s", self.path, damage)


def _items(frame: Frame) -> list[tuple[int, memoryview]]:
    """Types and payloads of what a frame holds."""
    return unpack_block(frame.payload) if frame.kind == BLOCK else [(frame.kind, frame.payload)]
