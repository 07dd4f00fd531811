"""Reading of a journal: its index, look-up of trials, and handling of damage."""

from __future__ import annotations

import logging
import mmap
import os
import threading
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from ..errors import JournalError
from . import encoding, frames
from .encoding import SHORT, Context, K, MalformedError, MissingError
from .frames import BLOCK, DEFINITION, EVENT, HEADER_BYTES, INDEX, TRIAL, Damage, Frame
from .index import MARKER, Entry, Table
from .records import ContentAddressed, Device, Event, Target, Trial, Workload

logger = logging.getLogger(__name__)


class Record(NamedTuple):
    """A trial or an event, and its position: a frame, or a slot of a block."""

    offset: int
    kind: int
    #: Index in the block; 0 if it is a frame by itself.
    slot: int
    payload: memoryview


class Reader:
    """A journal file, open for reading."""

    def __init__(self, path: Path, fd: int):
        self.path, self._fd, self._is_open = path, fd, True
        self._lock = threading.RLock()
        self.remap()
        self._forget()
        #: Damage found so far.  Only reading all records finds everything.
        self.damage: list[Damage] = []
        #: Bytes after the last whole record: one that is being written, or was cut.
        self.tail: Damage | None = None
        if (broken := frames.check_header(self._view, path)) is not None:
            self._report(broken)
        #: Offsets of the last index's begin and end.
        self.index_at = self.indexed_to = HEADER_BYTES
        self._take_last_index()
        self._read(self.indexed_to)

    # -- look-up -------------------------------------------------------------------------------

    def best(self, workload: Workload, target: Target) -> Trial | None:
        """Return the cheapest trial of a workload, on a target with the same compatibility key."""
        with self._lock:
            self._check_open()
            if not self.table.compatible(workload.compatibility_key):
                return None
        trial = self.nearest(workload, target)
        return trial if trial is not None and trial.workload == workload else None

    def nearest(self, workload: Workload, target: Target) -> Trial | None:
        """Return the best trial of a workload, or of the nearest one whose knobs mean the same.

        Such a workload has the same family and loops; without any, it is one over a map of nearly
        the same size.  Workloads with the same storage are preferred: see
        :meth:`.Workload.distance`.
        """
        with self._lock:
            self._check_open()
            self._known[workload.key] = workload
            key = workload.compatibility_key
            for _ in range(2):
                alike = _measured(self.table.compatible(key), target)
                ranked = [
                    (workload.distance(other), entry.cost, entry)
                    for entry in alike or _measured(self.table, target)
                    if (other := self.workload(entry.workload)) is not None
                    if other.compatibility_key == key or workload.is_like(other)
                ]
                if not ranked:
                    return None
                nearest = min(ranked, key=lambda item: item[:2])[2]
                if (trial := self.trial_of(nearest)) is not None:
                    return trial
                # The index points to damaged frames: read all frames to find the remaining trials.
                self.read_all()
            return None

    def trial_of(self, entry: Entry) -> Trial | None:
        """Return the best trial of an entry; ``None`` if there is none, or it is damaged."""
        frame = self.frame(entry.offset) if entry.cost < float("inf") else None
        try:
            if frame is None or frame.kind not in (TRIAL, BLOCK):
                return None
            trial = self.unpack(_items(frame)[entry.slot][1])
        except (MalformedError, IndexError) as error:
            logger.debug("%s: the trial at %d is damaged: %s", self.path, entry.offset, error)
            return None
        return trial if trial.workload.key == entry.workload else None

    def trials(self, workload: Workload | None = None) -> Iterator[Trial]:
        """Yield trials in the order in which they were appended, of one workload or of all."""
        self._begin_reading()
        records: Iterable[Record] = (r for r in self.records() if r.kind == TRIAL)
        for is_again in (False, True):
            late = []
            for record in records:
                try:
                    trial = self.unpack(record.payload)
                except MalformedError as error:
                    late.append(record)
                    if is_again:
                        self._damaged(record, error)
                    continue
                if workload is None or trial.workload == workload:
                    yield trial
            if not late:
                return
            if not is_again:
                # Try the trials again whose definitions have another copy that was not read yet.
                self.read_all()
            records = late

    def events(self) -> Iterator[Event]:
        """Yield events in the order in which they were appended."""
        self._begin_reading()
        for record in self.records():
            if record.kind == EVENT:
                try:
                    find_device = partial(self.content_addressed, Device)
                    yield encoding.unpack_event(record.payload, find_device)
                except MalformedError as error:
                    self._damaged(record, error)

    def entries(self) -> list[Entry]:
        """Return the number of trials and the best one, by workload and compatible targets."""
        self._check_open()
        return list(self.table)

    def _begin_reading(self) -> None:
        self._check_open()

    def _check_open(self) -> None:
        if not self._is_open:
            raise JournalError(
                f"The journal {self.path} was used, but is closed.",
                remedy="Open it again.",
            )

    # -- the file ------------------------------------------------------------------------------

    def _forget(self) -> None:
        #: Contents of the last index and of the frames after it.
        self.table = Table()
        #: Decoded definitions by key, and decoded contexts by the first bytes of their key.
        self._known: dict[bytes, ContentAddressed] = {}
        self._contexts: dict[bytes, Context] = {}
        #: Definitions of unpacked blocks, by the block's offset.
        self._blocks: dict[int, dict[bytes, memoryview]] = {}

    def remap(self) -> None:
        """Map the file in its current state, including records appended after it was opened."""
        size = os.fstat(self._fd).st_size
        # Records that others append later are not read; mapped bytes never change.
        self._view = memoryview(mmap.mmap(self._fd, size, access=mmap.ACCESS_READ) if size else b"")

    def frame(self, offset: int) -> Frame | None:
        """Return the frame at an offset, even if it was appended after the file was opened."""
        if offset >= len(self._view):
            self.remap()
        return frames.frame_at(self._view, offset)

    def _take_last_index(self) -> None:
        mapped = self._view.obj
        end = len(self._view)
        while isinstance(mapped, mmap.mmap) and (at := mapped.rfind(MARKER, 0, end)) >= 0:
            frame = frames.frame_at(self._view, at - frames.FRAME_BYTES)
            if frame is not None and frame.kind == INDEX:
                try:
                    self.table = Table.unpack(frame.payload)
                    self.index_at, self.indexed_to = frame.offset, frame.end
                    return
                except MalformedError as error:
                    self._damaged(frame, error)
            end = at

    def _read(self, start: int) -> None:
        """Load the frames starting at offset ``start`` into the table."""
        self.tail = None
        records = list(self.records(start))
        trials = [record for record in records if record.kind == TRIAL]
        self.table.events += len(records) - len(trials)
        # Trials come last: a trial may refer to a definition whose first copy is damaged.
        for record in trials:
            try:
                short, cost = encoding.trial_cost(record.payload)
                context = self.context(short)
                self.table.add(context.workload, context.target, cost, record.offset, record.slot)
            except MalformedError as error:
                if isinstance(error, MissingError) and start > HEADER_BYTES:
                    # A definition that the index knows is damaged, but may have a copy.
                    self.read_all()
                    return
                self._damaged(record, error)

    def read_all(self) -> None:
        """Forget the index and read every frame, because the index proved wrong."""
        self._forget()
        self.damage = []
        self.remap()
        self._read(HEADER_BYTES)

    # -- definitions ---------------------------------------------------------------------------

    def context(self, short: bytes) -> Context:
        """Return the context by the first bytes of its key; `MissingError` if a part is missing."""
        if (context := self._contexts.get(short)) is None:
            data = self._data("context", short)
            if len(data) != 80:
                raise MalformedError("a context refers to another number of definitions")
            keys = [data[at : at + 16] for at in range(0, 80, 16)]
            toolchain, skeleton = self._data("toolchain", keys[3]), self._data("skeleton", keys[4])
            versions = encoding.parse(toolchain)
            if not isinstance(versions, dict) or not isinstance(encoding.parse(skeleton), list):
                raise MalformedError("a toolchain or a skeleton is not of its form")
            workload = self.content_addressed(Workload, keys[0])
            target = self.content_addressed(Target, keys[1])
            device = self.content_addressed(Device, keys[2])
            context = Context(workload, target, device, versions, skeleton)
            self._contexts[short] = context
        return context

    def content_addressed(self, cls: type[K], key: bytes) -> K:
        """Return a workload, target or device; `MissingError` if it is damaged or missing."""
        if not isinstance(value := self._known.get(key), cls):
            value = encoding.read_content_addressed(cls, self._data(cls.kind_of_definition(), key))
            self._known[key] = value
        return value

    def workload(self, key: bytes) -> Workload | None:
        """Return the workload with a key, ``None`` if its definition is damaged."""
        try:
            return self.content_addressed(Workload, key)
        except MissingError:
            return None

    def _data(self, kind: str, key: bytes) -> bytes:
        payload = self.definition(key[:SHORT])
        if payload is not None:
            found, whole, data = encoding.unpack_definition(payload)
            if found == kind and whole.startswith(key):
                return data
        raise MissingError(f"its {kind} {key.hex()} is not there")

    def definition(self, short: bytes) -> memoryview | None:
        """Return the payload of a definition; ``None`` if it is damaged or missing."""
        offset = self.table.definitions.get(short)
        frame = self.frame(offset) if offset is not None else None
        if frame is not None and frame.kind == DEFINITION:
            return frame.payload
        if frame is None or frame.kind != BLOCK:
            return None
        if frame.offset not in self._blocks:
            try:
                items = [payload for kind, payload in _items(frame) if kind == DEFINITION]
                keys = [encoding.unpack_definition(payload)[1][:SHORT] for payload in items]
            except MalformedError:
                return None
            self._blocks[frame.offset] = dict(zip(keys, items, strict=True))
        return self._blocks[frame.offset].get(short)

    # -- records -------------------------------------------------------------------------------

    def records(self, start: int = HEADER_BYTES) -> Iterator[Record]:
        """Yield trials and events in the order of the file.

        This adds definitions to the table.  Damage is reported and skipped.  Unknown types of
        frames, from newer minor versions, are skipped.
        """
        for item in frames.frames(self._view, start):
            if isinstance(item, Damage):
                if item.reason == frames.TAIL:
                    self.tail = item
                else:
                    self._report(item)
                continue
            try:
                for slot, (kind, payload) in enumerate(_items(item)):
                    if kind == DEFINITION:
                        _, key, _ = encoding.unpack_definition(payload)
                        self.table.definitions.setdefault(key[:SHORT], item.offset)
                    elif kind in (TRIAL, EVENT):
                        yield Record(item.offset, kind, slot, payload)
            except MalformedError as error:
                self._damaged(item, error)

    def unpack(self, payload: memoryview) -> Trial:
        """Return a trial; `MalformedError` if it or its context is damaged."""
        return encoding.unpack_trial(payload, self.context(bytes(payload[:SHORT])))

    def _damaged(self, where: Record | Frame, error: MalformedError) -> None:
        self._report(Damage(where.offset, len(where.payload), str(error)))

    def _report(self, damage: Damage) -> None:
        if damage not in self.damage:
            self.damage.append(damage)
            logger.warning("%s is damaged: %s", self.path, damage)


def _measured(entries: Iterable[Entry], target: Target) -> list[Entry]:
    """Return the entries with a cost on targets with the same compatibility key."""
    return [e for e in entries if e.target == target.compatibility_key and e.cost < float("inf")]


def _items(frame: Frame) -> list[tuple[int, memoryview]]:
    """Return types and payloads of the items in a frame."""
    return (
        encoding.unpack_block(frame.payload)
        if frame.kind == BLOCK
        else [(frame.kind, frame.payload)]
    )
