"""Journals: append-only binary files of trials, safe to be cut, shared and damaged.

``docs/journal.md`` has the byte layout and what is promised.

>>> with Journal.open("pixel8.journal", "a") as journal:
...     journal.append(trial)
>>> with Journal.open("pixel8.journal") as journal:
...     journal.best(workload, target).knobs
"""

from __future__ import annotations

import os
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Literal

from ..errors import JournalError
from .appending import Appender, close_locked, io_error, open_locked
from .definitions import (
    SHORT,
    definition,
    pack_event,
    pack_trial,
    skeleton_of,
    toolchain_data,
    unpack_event,
)
from .frames import DEFINITION, EVENT, INDEX, TRIAL, Damage
from .index import Entry
from .packing import MalformedError
from .records import Event, Keyed, Target, Trial, Workload, digest
from .store import Store

#: An index is written when so many bytes follow the last one, and that is small beside them.
INDEX_EVERY_BYTES = 1 << 16
INDEX_SHARE = 16


class Journal:
    """A journal that was opened with :meth:`open`."""

    def __init__(self, path: Path, fd: int, writing: bool):
        self.path = path
        self._fd: int | None = fd
        self._store = Store(path, fd)
        self._lock = threading.RLock()
        #: Contexts of appended trials by what they refer to.
        self._contexts: dict[tuple, bytes] = {}
        #: Frames of definitions that stand in the file only once.
        self._uncopied: list[tuple[int, bytes]] = []
        self._appender = self._begin(fd) if writing else None

    @classmethod
    def open(cls, path: str | os.PathLike[str], mode: Literal["r", "a"] = "r") -> Journal:
        """Open a journal to read it, or also to append to it.

        Parameters
        ----------
        path
            With ``a``, a file that does not exist is made.
        mode
            ``r`` sees what is there now; others may go on appending.  ``a`` is had by one
            process at a time.

        Raises
        ------
        JournalError
            If it cannot be opened, is something else, or is being written by another process.
        """
        file = Path(path)
        writing = mode == "a"
        try:
            fd = open_locked(file) if writing else os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise JournalError(
                f"Opening the journal {file} failed: {error.strerror or error}.",
                remedy="Name an existing journal. `tvmflow journal import` makes one.",
            ) from error
        try:
            return cls(file, fd, writing)
        except OSError as error:
            close_locked(fd)
            raise io_error("Reading", file, error) from error
        except BaseException:
            close_locked(fd)
            raise

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            # The first error is the one that matters.
            with suppress(JournalError):
                self.close()

    def close(self) -> None:
        """Write what the index lacks, force everything to the disk, and let others write.

        Raises
        ------
        JournalError
            If that fails; the file is closed anyway.
        """
        with self._lock:
            if self._fd is None:
                return
            try:
                if self._appender is not None:
                    self._copy_definitions()
                    if self._unindexed_bytes > self._index_bytes:
                        self._write_index()
                    self._appender.sync()
            finally:
                close_locked(self._fd)
                self._fd = None

    # -- reading -------------------------------------------------------------------------------

    def best(self, workload: Workload, target: Target) -> Trial | None:
        """The trial of the least cost of a workload, on a target of the same kind and preset."""
        return self._best(workload, target, near=False)

    def nearest(self, workload: Workload, target: Target) -> Trial | None:
        """The same, or else the best one of a workload whose knobs mean the same.

        That is one of the same family and loops.  What is stored alike comes first: see
        :meth:`.Workload.distance`.
        """
        return self._best(workload, target, near=True)

    def _best(self, workload: Workload, target: Target, near: bool) -> Trial | None:
        with self._lock:
            self._check_open()
            self._store.definitions.add(workload)
            entry = self._best_entry(workload, target, near)
            if entry is None or (trial := self._trial(entry)) is not None:
                return None if entry is None else trial
            # What the index points to is damaged: what is left is found the slow way.
            self._store.read_all()
            entry = self._best_entry(workload, target, near)
            return None if entry is None else self._trial(entry)

    def _trial(self, entry: Entry) -> Trial | None:
        trial = self._store.trial_at(entry.offset, entry.slot)
        return trial if trial is not None and trial.workload.key == entry.workload else None

    def _best_entry(self, workload: Workload, target: Target, near: bool) -> Entry | None:
        entries = [
            entry
            for entry in self._store.table.of_kin(workload.kin)
            if entry.target == target.kin and entry.cost < float("inf")
        ]
        same = [entry for entry in entries if entry.workload == workload.key]
        if same or not near:
            return same[0] if same else None
        relatives = [(self._store.workload(entry.workload), entry) for entry in entries]
        ranked = [(workload.distance(w), e.cost, e) for w, e in relatives if w is not None]
        return min(ranked, key=lambda item: item[:2])[2] if ranked else None

    def trials(self, workload: Workload | None = None) -> Iterator[Trial]:
        """Trials in the order in which they were appended, of one workload or of all."""
        self._check_open()
        late = []
        for record in self._store.records():
            if record.kind == TRIAL:
                try:
                    trial = self._store.unpack(record.payload)
                except MalformedError:
                    late.append(record)
                    continue
                if workload is None or trial.workload == workload:
                    yield trial
        if late:
            # They refer to definitions whose first copies are damaged.
            self._store.read_all()
        for record in late:
            try:
                trial = self._store.unpack(record.payload)
            except MalformedError as error:
                self._store.report(record, error)
                continue
            if workload is None or trial.workload == workload:
                yield trial

    def events(self) -> Iterator[Event]:
        """Events in the order in which they were appended."""
        self._check_open()
        for record in self._store.records():
            if record.kind == EVENT:
                try:
                    yield unpack_event(record.payload, self._store.definitions)
                except MalformedError as error:
                    self._store.report(record, error)

    def entries(self) -> list[Entry]:
        """How many trials there are of each workload and kin of targets, and the best of them."""
        self._check_open()
        return list(self._store.table)

    @property
    def store(self) -> Store:
        """The file behind it."""
        return self._store

    @property
    def damage(self) -> list[Damage]:
        """What was found damaged so far.  Only reading all of it finds everything."""
        return list(self._store.damage)

    @property
    def tail(self) -> Damage | None:
        """Bytes behind the last whole record: one that is being written, or was cut."""
        return self._store.tail

    def _check_open(self) -> None:
        if self._fd is None:
            raise JournalError(
                f"The journal {self.path} was asked for something, but is closed.",
                remedy="Open it again.",
            )

    # -- writing -------------------------------------------------------------------------------

    def _begin(self, fd: int) -> Appender:
        """Take over where the last writer ended."""
        store = self._store
        if not all(map(store.definition, store.table.definitions)):
            # There may be copies; what is lost is written again when a trial needs it.
            store.read_all()
        table = store.table
        appender = Appender(self.path, fd)
        if store.tail is not None:
            details = {"offset": store.tail.offset, "bytes": store.tail.length}
            appender.write((EVENT, pack_event(Event("recovered", time.time(), None, details))))
            table.events += 1
        return appender

    def append(self, record: Trial | Event) -> None:
        """Append a trial or an event; it survives this process at once.

        It survives the machine after :meth:`flush`, or one second later if others follow.

        Raises
        ------
        JournalError
            If the journal was opened to read, the record is not what a journal holds, or the
            system refuses.
        """
        with self._lock:
            appender = self._writer()
            try:
                if isinstance(record, Event):
                    self._append_event(appender, record)
                else:
                    self._append_trial(appender, record)
            except (TypeError, ValueError, AttributeError, OverflowError, struct.error) as error:
                raise JournalError(
                    f"A record could not be appended to {self.path}: {error}.",
                    remedy="Records hold numbers, truth values, texts, and lists and "
                    "dictionaries of them.",
                ) from error
            if self._unindexed_bytes > max(INDEX_EVERY_BYTES, INDEX_SHARE * self._index_bytes):
                self._copy_definitions()
                self._write_index()

    def flush(self) -> None:
        """Force everything that was appended to the disk.

        Raises
        ------
        JournalError
            If the system fails to.
        """
        with self._lock:
            self._writer().sync()

    def _writer(self) -> Appender:
        self._check_open()
        if self._appender is None:
            raise JournalError(
                f"Appending to {self.path} failed: it was opened to be read.",
                remedy='Open it with Journal.open(path, "a").',
            )
        return self._appender

    def _append_event(self, appender: Appender, event: Event) -> None:
        frames = {} if event.device is None else self._new([keyed(event.device)])
        self._write(appender, frames, EVENT, pack_event(event))
        self._store.table.events += 1

    def _append_trial(self, appender: Appender, trial: Trial) -> None:
        numbers: list = []
        skeleton = skeleton_of(trial, numbers)
        workload, target = trial.workload, trial.target
        toolchain = tuple(trial.toolchain.items())
        memo = (workload.key, target.key, trial.device.key, toolchain, skeleton)
        frames: dict[bytes, bytes] = {}
        if (short := self._contexts.get(memo)) is None:
            parts = [keyed(workload), keyed(target), keyed(trial.device)]
            parts.append(stored("toolchain", toolchain_data(trial)))
            parts.append(stored("skeleton", skeleton.encode()))
            parts.append(stored("context", b"".join(key for key, _ in parts)))
            frames = self._new(parts)
            short = parts[-1][0][:SHORT]
        payload = pack_trial(short, trial, numbers)
        offset = self._write(appender, frames, TRIAL, payload)
        self._contexts[memo] = short
        entry = self._store.table.entry(workload.kin, workload.key, target.kin)
        entry.add(trial.cost, offset, 0)

    def _new(self, parts: list[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
        """Those definitions that are not in the file."""
        known = self._store.table.definitions
        return {key[:SHORT]: payload for key, payload in parts if key[:SHORT] not in known}

    def _write(
        self, appender: Appender, definitions: dict[bytes, bytes], kind: int, payload: bytes
    ) -> int:
        """Append definitions and a record that needs them; return the record's offset."""
        frames = [(DEFINITION, data) for data in definitions.values()]
        *offsets, last = appender.write(*frames, (kind, payload))
        self._store.table.definitions.update(zip(definitions, offsets, strict=True))
        self._uncopied += frames
        return last

    @property
    def _unindexed_bytes(self) -> int:
        return 0 if self._appender is None else self._appender.end - self._store.indexed_to

    @property
    def _index_bytes(self) -> int:
        return self._store.indexed_to - self._store.index_at

    def _copy_definitions(self) -> None:
        """Write new definitions once more: thousands of trials may hang on a few bytes."""
        if self._uncopied:
            self._writer().write(*self._uncopied)
            self._uncopied = []

    def _write_index(self) -> None:
        store, appender = self._store, self._writer()
        (offset,) = appender.write((INDEX, store.table.pack(store.index_at)))
        store.index_at, store.indexed_to = offset, appender.end


def keyed(part: Keyed) -> tuple[bytes, bytes]:
    """Key and frame payload of a workload, target or device."""
    return part.key, definition(type(part).__name__.lower(), part.data)


def stored(kind: str, data: bytes) -> tuple[bytes, bytes]:
    """The same of another definition."""
    return digest(kind, data), definition(kind, data)
