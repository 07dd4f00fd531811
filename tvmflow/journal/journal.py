"""Journals: append-only binary files of trials, safe to be cut, shared and damaged.

``docs/journal.md`` has the byte layout and what is promised.

>>> with Journal.open("pixel8.journal", "a") as journal:
...     journal.append(trial)
>>> with Journal.open("pixel8.journal") as journal:
...     journal.best(workload, target).knobs
"""

from __future__ import annotations

import logging
import mmap
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

from ..errors import JournalError, nearest
from ..runtime.regular_files import open_fd
from ..tuning_logs import shipped
from . import encoding, frames
from .encoding import SHORT, Context, K, MalformedError, MissingError
from .frames import BLOCK, DEFINITION, EVENT, HEADER_BYTES, INDEX, TRIAL, Damage, Frame
from .index import MARKER, Entry, Table
from .records import Device, Event, Keyed, Target, Trial, Workload
from .writing import Writer, close_locked, io_error, open_locked

logger = logging.getLogger(__name__)


class Record(NamedTuple):
    """A trial or an event where it stands: in a frame, or at a place of a block."""

    offset: int
    kind: int
    #: Its place in the block; 0 where it is the frame itself.
    slot: int
    payload: memoryview


class Journal:
    """A journal that was opened with :meth:`open`."""

    def __init__(self, path: Path, fd: int, writing: bool):
        self.path, self._fd, self._is_open = path, fd, True
        self._lock = threading.RLock()
        self.remap()
        self._forget()
        #: Bytes that were found damaged so far.  Only reading all of them finds everything.
        self.damage: list[Damage] = []
        #: Bytes behind the last whole record: one that is being written, or was cut.
        self.tail: Damage | None = None
        if (broken := frames.check_header(self._view, path)) is not None:
            self._report(broken)
        #: Where the last index begins and ends.
        self.index_at = self.indexed_to = HEADER_BYTES
        self._take_last_index()
        self._read(self.indexed_to)
        self._writer = Writer(self, fd) if writing else None

    @classmethod
    def open(cls, path: str | os.PathLike[str], mode: Literal["r", "a"] = "r") -> Journal:
        """Open a journal to read it, or with ``a`` also to append to it.

        ``r`` sees what is there now; others may go on appending.  ``a`` is had by one process at a
        time, and makes a file that does not exist.

        Raises `JournalError` if it cannot be opened, is something else, or is being written by
        another process.
        """
        file = Path(path)
        writing = mode == "a"
        try:
            fd = open_locked(file) if writing else open_fd(file)
        except OSError as error:
            names = shipped()
            near = nearest(str(path), names, {}) if isinstance(error, FileNotFoundError) else ""
            raise JournalError(
                f"Opening the journal {file} failed: {error.strerror or error}{near}.",
                remedy="Name an existing journal, as `tvmflow journal import` and `tvmflow tune` "
                f"make, or one that ships with tvmflow: {', '.join(names)}.",
            ) from error
        try:
            return cls(file, fd, writing)
        except BaseException as error:
            close_locked(fd)
            if isinstance(error, OSError):
                raise io_error("Reading", file, error) from error
            raise

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # The first error is the one that matters.
        with nullcontext() if kind is None else suppress(JournalError):
            self.close()

    def close(self) -> None:
        """Write what the index lacks, force everything to the disk, and let others write.

        Raises `JournalError` if that fails; the file is closed anyway.
        """
        with self._lock:
            if not self._is_open:
                return
            try:
                if self._writer is not None:
                    self._writer.finish()
            finally:
                close_locked(self._fd)
                self._is_open = False

    # -- reading -------------------------------------------------------------------------------

    def best(self, workload: Workload, target: Target) -> Trial | None:
        """The trial of the least cost of a workload, on a target of the same kind and preset."""
        with self._lock:
            self._check_open()
            if not self.table.of_kin(workload.kin):
                return None
        trial = self.nearest(workload, target)
        return trial if trial is not None and trial.workload == workload else None

    def nearest(self, workload: Workload, target: Target) -> Trial | None:
        """The same, or else the best one of a workload whose knobs mean the same.

        That is one of the same family and loops; where there is none, of a map of nearly the same
        size.  What is stored alike comes first: see :meth:`.Workload.distance`.
        """
        with self._lock:
            self._check_open()
            self._known[workload.key] = workload
            for _ in range(2):
                alike = _measured(self.table.of_kin(workload.kin), target)
                ranked = [
                    (workload.distance(other), entry.cost, entry)
                    for entry in alike or _measured(self.table, target)
                    if (other := self.workload(entry.workload)) is not None
                    if other.kin == workload.kin or workload.is_like(other)
                ]
                if not ranked:
                    return None
                nearest = min(ranked, key=lambda item: item[:2])[2]
                if (trial := self.trial_of(nearest)) is not None:
                    return trial
                # What the index points to is damaged: what is left is found the slow way.
                self.read_all()
            return None

    def trial_of(self, entry: Entry) -> Trial | None:
        """The best trial that an entry counts; ``None`` without one, or where it is damaged."""
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
        """Trials in the order in which they were appended, of one workload or of all."""
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
                # They refer to definitions whose first copies are damaged.
                self.read_all()
            records = late

    def events(self) -> Iterator[Event]:
        """Events in the order in which they were appended."""
        self._begin_reading()
        for record in self.records():
            if record.kind == EVENT:
                try:
                    yield encoding.unpack_event(record.payload, partial(self.keyed, Device))
                except MalformedError as error:
                    self._damaged(record, error)

    def entries(self) -> list[Entry]:
        """How many trials there are of each workload and kin of targets, and the best of them."""
        self._check_open()
        return list(self.table)

    def _begin_reading(self) -> None:
        self._check_open()
        if self._writer is not None:
            # Who appends sees what is there, others what was there.
            self.remap()

    def _check_open(self) -> None:
        if not self._is_open:
            raise JournalError(
                f"The journal {self.path} was asked for something, but is closed.",
                remedy="Open it again.",
            )

    # -- writing -------------------------------------------------------------------------------

    def append(self, record: Trial | Event) -> None:
        """Append a trial or an event; it survives this process at once.

        It survives the machine after :meth:`flush`, or one second later if others follow.

        Raises `JournalError` if the journal was opened to read, the record is not what a journal
        holds, or the system refuses.
        """
        with self._writing() as writer:
            writer.append(record)

    def append_compressed(self, trials: Iterable[Trial]) -> None:
        """Append trials in compressed blocks, which are lost as a whole where they are damaged.

        Raises `JournalError` as :meth:`append`.
        """
        with self._writing() as writer:
            writer.append_compressed(trials)

    def flush(self) -> None:
        """Force everything that was appended to the disk; `JournalError` if that fails."""
        with self._writing() as writer:
            writer.sync()

    @contextmanager
    def _writing(self) -> Iterator[Writer]:
        with self._lock:
            self._check_open()
            if self._writer is None:
                raise JournalError(
                    f"Appending to {self.path} failed: it was opened to be read.",
                    remedy='Open it with Journal.open(path, "a").',
                )
            yield self._writer

    # -- the file ------------------------------------------------------------------------------

    def _forget(self) -> None:
        #: What the journal holds: its last index, and what follows that.
        self.table = Table()
        #: Definitions that need not be read again, by key, and contexts by its first bytes.
        self._known: dict[bytes, Keyed] = {}
        self._contexts: dict[bytes, Context] = {}
        #: Definitions of blocks that were unpacked, by the block's offset.
        self._blocks: dict[int, dict[bytes, memoryview]] = {}

    def remap(self) -> None:
        """Map the file as it is now, also what was appended after it was opened."""
        size = os.fstat(self._fd).st_size
        # What others append later is not looked at; what is mapped never changes.
        self._view = memoryview(mmap.mmap(self._fd, size, access=mmap.ACCESS_READ) if size else b"")

    def frame(self, offset: int) -> Frame | None:
        """Return the frame at an offset, also one that was appended after the file was opened."""
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
        """Take up what stands behind ``start`` in the table."""
        self.tail = None
        records = list(self.records(start))
        trials = [record for record in records if record.kind == TRIAL]
        self.table.events += len(records) - len(trials)
        # At last: a trial may refer to a definition whose first copy is damaged.
        for record in trials:
            try:
                short, cost = encoding.trial_cost(record.payload)
                context = self.context(short)
                self.table.add(context.workload, context.target, cost, record.offset, record.slot)
            except MalformedError as error:
                if isinstance(error, MissingError) and start > HEADER_BYTES:
                    # A definition that the index knows is damaged: there may be a copy.
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
        """Return the context with a key that begins so; `MissingError` without it or its parts."""
        if (context := self._contexts.get(short)) is None:
            data = self._data("context", short)
            if len(data) != 80:
                raise MalformedError("a context refers to another number of definitions")
            keys = [data[at : at + 16] for at in range(0, 80, 16)]
            toolchain, skeleton = self._data("toolchain", keys[3]), self._data("skeleton", keys[4])
            versions = encoding.parse(toolchain)
            if not isinstance(versions, dict) or not isinstance(encoding.parse(skeleton), list):
                raise MalformedError("a toolchain or a skeleton is not of its form")
            target, device = self.keyed(Target, keys[1]), self.keyed(Device, keys[2])
            context = Context(self.keyed(Workload, keys[0]), target, device, versions, skeleton)
            self._contexts[short] = context
        return context

    def keyed(self, cls: type[K], key: bytes) -> K:
        """Return a workload, target or device; `MissingError` where it is damaged or not there."""
        if not isinstance(value := self._known.get(key), cls):
            value = encoding.read_keyed(cls, self._data(cls.kind_of_definition(), key))
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
            found, whole, data = encoding.unpack_definition(payload)
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
                keys = [encoding.unpack_definition(payload)[1][:SHORT] for payload in items]
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
    """Those on targets of a kin that have a cost."""
    return [e for e in entries if e.target == target.kin and e.cost < float("inf")]


def _items(frame: Frame) -> list[tuple[int, memoryview]]:
    """Types and payloads of what a frame holds."""
    return (
        encoding.unpack_block(frame.payload)
        if frame.kind == BLOCK
        else [(frame.kind, frame.payload)]
    )
