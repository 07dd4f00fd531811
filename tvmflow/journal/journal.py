"""Journals: append-only binary files of trials that survive crashes, sharing and damage.

``docs/journal.md`` has the byte layout and the guarantees.

>>> with Journal.open("pixel8.journal", "a") as journal:
...     journal.append(trial)
>>> with Journal.open("pixel8.journal") as journal:
...     journal.best(workload, target).knobs
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Literal

from ..errors import JournalError, nearest
from ..runtime.regular_files import open_fd
from ..tuning_logs import shipped
from .reading import Reader
from .records import Event, Trial
from .writing import Writer, close_locked, io_error, open_locked


class Journal(Reader):
    """A journal file, opened with :meth:`open`."""

    def __init__(self, path: Path, fd: int, writing: bool):
        super().__init__(path, fd)
        self._writer = Writer(self, fd) if writing else None

    @classmethod
    def open(cls, path: str | os.PathLike[str], mode: Literal["r", "a"] = "r") -> Journal:
        """Open a journal to read it, or with ``a`` also to append to it.

        ``r`` sees the records at the time of opening; other processes may append meanwhile.  ``a``
        is exclusive to one process, and creates the file if it does not exist.

        Raises `JournalError` if the file cannot be opened, is not a journal, or is being written by
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
        # After another error, an error of closing is not reported.
        with nullcontext() if kind is None else suppress(JournalError):
            self.close()

    def close(self) -> None:
        """Write the index, force everything to the disk, and release the lock.

        Raises `JournalError` if that fails; the file is closed nevertheless.
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

    def _begin_reading(self) -> None:
        super()._begin_reading()
        if self._writer is not None:
            # A writer also sees what it appended; a reader sees the file as it was when opened.
            self.remap()

    # -- writing -------------------------------------------------------------------------------

    def append(self, record: Trial | Event) -> None:
        """Append a trial or an event; it survives a crash of this process at once.

        It survives a crash of the machine after :meth:`flush`, or one second later if others
        follow.  Raises `JournalError` if the journal was opened to read, the record has other types
        than a journal holds, or the system reports an error.
        """
        with self._writing() as writer:
            writer.append(record)

    def append_compressed(self, trials: Iterable[Trial]) -> None:
        """Append trials in compressed blocks; damage to a block loses all of its trials.

        Raises `JournalError` like :meth:`append`.
        """
        with self._writing() as writer:
            writer.append_compressed(trials)

    def flush(self) -> None:
        """Force all appended records to the disk; `JournalError` if that fails."""
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
