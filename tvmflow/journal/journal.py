"""Journals: append-only binary files of trials, safe to be cut, shared and damaged.

``docs/journal.md`` has the byte layout and what is promised.

>>> with Journal.open("pixel8.journal", "a") as journal:
...     journal.append(trial)
>>> with Journal.open("pixel8.journal") as journal:
...     journal.best(workload, target).knobs
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from ..errors import JournalError
from .encoding import MalformedError, unpack_event
from .frames import EVENT, TRIAL, Damage
from .records import Event, Target, Trial, Workload
from .store import Entry, Record, Store
from .writing import Writer, close_locked, io_error, open_locked


class Journal:
    """A journal that was opened with :meth:`open`."""

    def __init__(self, path: Path, fd: int, writing: bool):
        self.path = path
        self._fd: int | None = fd
        #: The file behind it.
        self.store = Store(path, fd)
        self._lock = threading.RLock()
        self._writer = Writer(self.store, fd) if writing else None

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

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
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
                if self._writer is not None:
                    self._writer.finish()
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
            self.store.definitions.add(workload)
            entry = self._best_entry(workload, target, near)
            if entry is None:
                return None
            if (trial := self.trial_of(entry)) is not None:
                return trial
            # What the index points to is damaged: what is left is found the slow way.
            self.store.read_all()
            entry = self._best_entry(workload, target, near)
            return None if entry is None else self.trial_of(entry)

    def trial_of(self, entry: Entry) -> Trial | None:
        """The best trial that an entry counts; ``None`` without one, or where it is damaged."""
        if entry.cost == float("inf"):
            return None
        trial = self.store.trial_at(entry.offset, entry.slot)
        return trial if trial is not None and trial.workload.key == entry.workload else None

    def _best_entry(self, workload: Workload, target: Target, near: bool) -> Entry | None:
        entries = [
            entry
            for entry in self.store.table.of_kin(workload.kin)
            if entry.target == target.kin and entry.cost < float("inf")
        ]
        same = [entry for entry in entries if entry.workload == workload.key]
        if same or not near:
            return same[0] if same else None
        relatives = [(self.store.workload(entry.workload), entry) for entry in entries]
        ranked = [(workload.distance(w), e.cost, e) for w, e in relatives if w is not None]
        return min(ranked, key=lambda item: item[:2])[2] if ranked else None

    def trials(self, workload: Workload | None = None) -> Iterator[Trial]:
        """Trials in the order in which they were appended, of one workload or of all."""
        self._begin_reading()
        late: list[Record] = []
        found = (record for record in self.store.records() if record.kind == TRIAL)
        yield from self._unpacked(found, workload, lambda record, _: late.append(record))
        if late:
            # They refer to definitions whose first copies are damaged.
            self.store.read_all()
            yield from self._unpacked(late, workload, self.store.report)

    def _unpacked(
        self,
        records: Iterable[Record],
        workload: Workload | None,
        failed: Callable[[Record, MalformedError], None],
    ) -> Iterator[Trial]:
        for record in records:
            try:
                trial = self.store.unpack(record.payload)
            except MalformedError as error:
                failed(record, error)
                continue
            if workload is None or trial.workload == workload:
                yield trial

    def events(self) -> Iterator[Event]:
        """Events in the order in which they were appended."""
        self._begin_reading()
        for record in self.store.records():
            if record.kind == EVENT:
                try:
                    yield unpack_event(record.payload, self.store.definitions)
                except MalformedError as error:
                    self.store.report(record, error)

    def entries(self) -> list[Entry]:
        """How many trials there are of each workload and kin of targets, and the best of them."""
        self._check_open()
        return list(self.store.table)

    @property
    def damage(self) -> list[Damage]:
        """What was found damaged so far.  Only reading all of it finds everything."""
        return list(self.store.damage)

    @property
    def tail(self) -> Damage | None:
        """Bytes behind the last whole record: one that is being written, or was cut."""
        return self.store.tail

    def _begin_reading(self) -> None:
        self._check_open()
        if self._writer is not None:
            # Who appends sees what is there, others what was there.
            self.store.remap()

    def _check_open(self) -> None:
        if self._fd is None:
            raise JournalError(
                f"The journal {self.path} was asked for something, but is closed.",
                remedy="Open it again.",
            )

    # -- writing -------------------------------------------------------------------------------

    def append(self, record: Trial | Event) -> None:
        """Append a trial or an event; it survives this process at once.

        It survives the machine after :meth:`flush`, or one second later if others follow.

        Raises
        ------
        JournalError
            If the journal was opened to read, the record is not what a journal holds, or the
            system refuses.
        """
        with self._writing() as writer:
            writer.append(record)

    def append_compressed(self, trials: Iterable[Trial]) -> None:
        """Append trials in compressed blocks, which are lost as a whole where they are damaged.

        Raises
        ------
        JournalError
            As :meth:`append`.
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
