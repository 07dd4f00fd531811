"""Writing of a journal: one writer at a time, whole frames, and when they reach the disk."""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path

from ..errors import JournalError
from .frames import HEADER_BYTES, encode, header, write_all

#: Longest time that an appended record waits to be forced to the disk while others follow.
SYNC_SECONDS = 1.0


def open_locked(path: Path) -> int:
    """Open a journal to append to it, and make it where there is none; return the descriptor.

    Raises
    ------
    JournalError
        If another process is writing it, or it cannot be opened.
    """
    try:
        while True:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Compaction may have put another file in its place before the lock was had.
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
    """Close a file and let others write it: a mapping of it would hold the lock on."""
    with suppress(OSError):
        # A file system without locks lets nobody append, but everybody read.
        fcntl.flock(fd, fcntl.LOCK_UN)
    os.close(fd)


def _begin(fd: int, path: Path) -> None:
    """Write the header of a new file, also of one whose writer died before it could."""
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
    """What the system said, as an error of ours."""
    return JournalError(
        f"{doing} the journal {path} failed: {error.strerror or error}.",
        remedy="Check the free space and the permissions of its folder. What was written before "
        "is whole.",
    )


class Appender:
    """Appends frames to a locked file."""

    def __init__(self, path: Path, fd: int):
        self._path, self._fd = path, fd
        self._synced = time.monotonic()
        self._dirty = False
        #: Where the next frame will stand.
        self.end = os.fstat(fd).st_size

    def write(self, *payloads: tuple[int, bytes]) -> list[int]:
        """Append frames of types and payloads in one call; return their offsets.

        They are with the system then, and survive this process; :meth:`sync` makes them
        survive the machine.

        Raises
        ------
        JournalError
            If the system refuses, for example because the disk is full.  A part of a frame
            that it took is skipped by readers.
        """
        offsets, data, end = [], b"", self.end
        for kind, payload in payloads:
            offsets.append(end + len(data))
            data += encode(kind, payload, offsets[-1])
        try:
            write_all(self._fd, data)
        except OSError as error:
            self.end = os.fstat(self._fd).st_size
            raise io_error("Writing", self._path, error) from error
        self.end += len(data)
        self._dirty = True
        if time.monotonic() - self._synced > SYNC_SECONDS:
            self.sync()
        return offsets

    def sync(self) -> None:
        """Force everything to the disk.

        Raises
        ------
        JournalError
            If the system fails to.
        """
        if self._dirty:
            try:
                os.fsync(self._fd)
            except OSError as error:
                raise io_error("Writing", self._path, error) from error
            self._dirty = False
        self._synced = time.monotonic()
