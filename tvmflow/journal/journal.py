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
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Literal

from ..errors import JournalError
from .encoding import MalformedError, unpack_event
from .frames import EVENT, TRIAL
from .records import Device, Event, Target, Trial, Workload
from .store import Entry, Record, Store
from .writing import Writer, close_locked, io_error, open_locked


class Journal(Store):
    """A journal that was opened with :meth:`open`."""

    def __init__(self, path: Path, fd: int, writing: bool):
        super().__init__(path, fd)
        self._is_open = True
        self._lock = threading.RLock()
        self._writer = Writer(self, fd) if writing else None

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
            self._known[workload.key] = workload
            for _ in range(2):
                entry = self._best_entry(workload, target, near)
                if entry is None or (trial := self.trial_of(entry)) is not None:
                    return None if entry is None else trial
                # What the index points to is damaged: what is left is found the slow way.
                self.read_all()
            return None

    def trial_of(self, entry: Entry) -> Trial | None:
        """The best trial that an entry counts; ``None`` without one, or where it is damaged."""
        if entry.cost == float("inf"):
            return None
        trial = self.trial_at(entry.offset, entry.slot)
        return trial if trial is not None and trial.workload.key == entry.workload else None

    def _best_entry(self, workload: Workload, target: Target, near: bool) -> Entry | None:
        ranked = [
            (workload.distance(other), entry.cost, entry)
            for entry in self.table.of_kin(workload.kin)
            if entry.target == target.kin and entry.cost < float("inf")
            if near or entry.workload == workload.key
            if (other := self.workload(entry.workload)) is not None
        ]
        return min(ranked, key=lambda item: item[:2])[2] if ranked else None

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
                        self.report(record, error)
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
                    yield unpack_event(record.payload, partial(self.keyed, Device))
                except MalformedError as error:
                    self.report(record, error)

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
