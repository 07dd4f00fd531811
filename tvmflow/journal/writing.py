"""Writing of a journal: one writer at a time, whole frames, and syncs to the disk."""

from __future__ import annotations

import fcntl
import os
import struct
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..errors import JournalError
from ..runtime.regular_files import open_fd
from . import encoding
from .encoding import SHORT, pack_block, pack_definition
from .frames import BLOCK, DEFINITION, EVENT, HEADER_BYTES, INDEX, TRIAL, encode, header, write_all
from .reading import Reader
from .records import Event, Trial, canonical, digest

#: Longest time until an appended record is forced to the disk while others follow.
SYNC_SECONDS = 1.0
#: An index is written when at least this many bytes follow the last one, and `INDEX_SHARE` times
#: its own size.
INDEX_EVERY_BYTES = 1 << 16
INDEX_SHARE = 16
#: Most records and bytes of a compressed block, which damage loses as a whole.
BLOCK_ITEMS, BLOCK_BYTES = 64, 1 << 16

#: Definitions that are not in the file yet: kind and data by key.
New = dict[bytes, tuple[str, bytes]]


def open_locked(path: Path) -> int:
    """Open a journal to append to it, or create it; return the descriptor.

    Raises `JournalError` if another process is writing it, or it cannot be opened.
    """
    try:
        while True:
            fd = open_fd(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Compaction may have replaced the file before it was locked.
                if os.path.samestat(os.fstat(fd), os.stat(path)):
                    _begin(fd, path)
                    return fd
            except FileNotFoundError:
                pass
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)
    except BlockingIOError:
        raise JournalError(
            f"Opening {path} to append to it failed: another process is writing it.",
            remedy="Wait for it to end, or write another journal and merge the two with "
            "`tvmflow journal merge`.",
        ) from None
    except OSError as error:
        raise io_error("Opening", path, error) from error


def close_locked(fd: int) -> None:
    """Unlock and close a file; a mapping of the file would otherwise keep the lock."""
    with suppress(OSError):
        # On a file system without locks, nobody can append, but everybody can read.
        fcntl.flock(fd, fcntl.LOCK_UN)
    os.close(fd)


def _begin(fd: int, path: Path) -> None:
    """Write the header of a new file, or complete it if an earlier writer was interrupted."""
    size = os.fstat(fd).st_size
    if size >= HEADER_BYTES:
        return
    if os.pread(fd, size, 0) != header()[:size]:
        raise JournalError(
            f"{path} was expected to be a tuning journal, but it is another kind of file of "
            f"{size} bytes.",
            remedy="Name another file.",
        )
    write_all(fd, header()[size:])
    os.fsync(fd)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def io_error(doing: str, path: Path, error: OSError) -> JournalError:
    """Turn an error of the system into a `JournalError`."""
    return JournalError(
        f"{doing} the journal {path} failed: {error.strerror or error}.",
        remedy="Check the free space and the permissions of its folder. What was written before "
        "is whole.",
    )


class Writer:
    """A writer that appends to an opened and locked journal, and to its table."""

    def __init__(self, journal: Reader, fd: int):
        if not all(map(journal.definition, journal.table.definitions)):
            # There may be copies; missing definitions are written again when a trial needs them.
            journal.read_all()
        self._journal, self._fd = journal, fd
        #: Offset of the next frame.
        self._end = os.fstat(fd).st_size
        self._synced, self._dirty = time.monotonic(), False
        #: Short keys of appended trials' contexts, by their parts.
        self._contexts: dict[tuple, bytes] = {}
        #: Frames of definitions that the file contains only once.
        self._uncopied: list[tuple[int, bytes]] = []
        if journal.tail is not None:
            details = {"offset": journal.tail.offset, "bytes": journal.tail.length}
            self.append(Event("recovered", time.time(), None, details))

    def append(self, record: Trial | Event) -> None:
        """Append a trial or an event; see `Journal.append`."""
        new: New = {}
        table = self._journal.table
        with self._refusing():
            if isinstance(record, Event):
                if record.device is not None:
                    self._need(new, record.device.definition)
                kind, payload = EVENT, encoding.pack_event(record)
            else:
                kind, payload = TRIAL, self._encode(record, new)
        frames = [(DEFINITION, pack_definition(*one, pack=True)) for one in new.values()]
        *offsets, offset = self._write([*frames, (kind, payload)])
        for key, at in zip(new, offsets, strict=True):
            table.definitions[key[:SHORT]] = at
        self._uncopied += frames
        if isinstance(record, Event):
            table.events += 1
        else:
            table.add(record.workload, record.target, record.cost, offset, 0)
        unindexed = self._end - self._journal.indexed_to
        if unindexed > max(INDEX_EVERY_BYTES, INDEX_SHARE * self._index_bytes):
            self._write_index()

    def append_compressed(self, trials: Iterable[Trial]) -> None:
        """Append trials in blocks, after blocks of the definitions that they need."""
        new: New = {}
        table = self._journal.table
        listed = list(trials)
        with self._refusing():
            payloads = [self._encode(trial, new) for trial in listed]
        # Definitions of one kind resemble each other, so that they deflate better together.
        new = dict(sorted(new.items(), key=lambda item: item[1][0]))
        definitions = [(DEFINITION, pack_definition(*one, pack=False)) for one in new.values()]
        shorts = iter(key[:SHORT] for key in new)
        for items in _blocks(definitions):
            frame = (BLOCK, pack_block(items))
            (offset,) = self._write([frame])
            self._uncopied.append(frame)
            for _, short in zip(items, shorts, strict=False):
                table.definitions[short] = offset
        rest = iter(listed)
        for items in _blocks([(TRIAL, payload) for payload in payloads]):
            (offset,) = self._write([(BLOCK, pack_block(items))])
            for slot, trial in zip(range(len(items)), rest, strict=False):
                table.add(trial.workload, trial.target, trial.cost, offset, slot)

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        try:
            yield
        except (TypeError, ValueError, AttributeError, OverflowError, struct.error) as error:
            raise JournalError(
                f"A record could not be appended to {self._journal.path}: {error}.",
                remedy="Records hold numbers, truth values, texts, and lists and dictionaries of "
                "them.",
            ) from error

    def _encode(self, trial: Trial, new: New) -> bytes:
        """Return the payload of a trial; add definitions that the file lacks to ``new``."""
        numbers: list[encoding.Number] = []
        skeleton = encoding.trial_document(trial, numbers)
        toolchain = tuple(trial.toolchain.items())
        shared = (trial.workload, trial.target, trial.device)
        memo = (*(part.key for part in shared), toolchain, skeleton)
        if (short := self._contexts.get(memo)) is None:
            parts = [part.definition for part in shared]
            parts += [("toolchain", canonical(dict(toolchain))), ("skeleton", skeleton.encode())]
            keys = [self._need(new, part) for part in parts]
            short = self._need(new, ("context", b"".join(keys)))[:SHORT]
            self._contexts[memo] = short
        return encoding.pack_trial(short, trial, numbers)

    def _need(self, new: New, part: tuple[str, bytes]) -> bytes:
        key = digest(*part)
        if key[:SHORT] not in self._journal.table.definitions:
            new[key] = part
        return key

    @property
    def _index_bytes(self) -> int:
        return self._journal.indexed_to - self._journal.index_at

    def _copy_definitions(self) -> None:
        """Write new definitions a second time, as thousands of trials may depend on a few bytes."""
        if self._uncopied:
            self._write(self._uncopied)
            self._uncopied = []

    def _write_index(self) -> None:
        journal = self._journal
        self._copy_definitions()
        (offset,) = self._write([(INDEX, journal.table.pack(journal.index_at))])
        journal.index_at, journal.indexed_to = offset, self._end

    def _write(self, frames: list[tuple[int, bytes]]) -> list[int]:
        """Append frames of types and payloads in one call; return their offsets.

        The system then has the bytes, which survive this process; :meth:`sync` makes them survive
        a crash of the machine.  Readers skip a partial frame that was written before an error.
        """
        offsets, data = [], b""
        try:
            for kind, payload in frames:
                offsets.append(self._end + len(data))
                data += encode(kind, payload, offsets[-1])
            try:
                write_all(self._fd, data)
            except OSError as error:
                self._end = os.fstat(self._fd).st_size
                raise io_error("Writing", self._journal.path, error) from error
            self._end += len(data)
            self._dirty = True
            if time.monotonic() - self._synced > SYNC_SECONDS:
                self.sync()
        except JournalError:
            # The definitions of these contexts may not have been written.
            self._contexts.clear()
            raise
        return offsets

    def sync(self) -> None:
        """Force everything to the disk; `JournalError` if the system reports an error."""
        if self._dirty:
            try:
                os.fsync(self._fd)
            except OSError as error:
                raise io_error("Writing", self._journal.path, error) from error
            self._dirty = False
        self._synced = time.monotonic()

    def finish(self) -> None:
        """Copy definitions, write the index, and force everything to the disk."""
        self._copy_definitions()
        if self._end - self._journal.indexed_to > self._index_bytes:
            self._write_index()
        self.sync()


def _blocks(items: list[tuple[int, bytes]]) -> Iterator[list[tuple[int, bytes]]]:
    block: list[tuple[int, bytes]] = []
    for item in items:
        size = sum(len(payload) for _, payload in [*block, item])
        if block and (len(block) == BLOCK_ITEMS or size > BLOCK_BYTES):
            yield block
            block = []
        block.append(item)
    if block:
        yield block
