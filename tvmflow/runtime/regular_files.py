"""Access to files that a user names, or from a cache: without blocking, and up to a size.

FIFOs and devices are refused: opening a FIFO waits for a writer, and a device may be endless or
react to being opened.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from typing import BinaryIO

#: Largest files that are read into memory: text written by people, and content of programs.
MOST_TEXT_BYTES, MOST_CONTENT_BYTES = 16 << 20, 1 << 30

_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def open_fd(path: str | os.PathLike[str], flags: int = os.O_RDONLY) -> int:
    """Open a regular file with ``os.open``'s flags, and return its descriptor.

    Raises `OSError` if it does not exist, cannot be opened, or is no regular file.
    """
    with suppress(FileNotFoundError):
        _check(os.stat(path), path)
    # Another file may replace it meanwhile: never block.
    more = os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    fd = os.open(path, flags | more, 0o666)
    try:
        _check(os.fstat(fd), path)
    except OSError:
        os.close(fd)
        raise
    return fd


def open_file(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file for reading; errors are those of `open_fd`."""
    return open(path, "rb", opener=open_fd)


def read_bytes(path: str | os.PathLike[str], most_bytes: int = MOST_CONTENT_BYTES) -> bytes:
    """Return the content of a regular file; raises `OSError` if it has more than ``most_bytes``."""
    with open_file(path) as file:
        # Not checked by its size, which is 0 for files in /proc.
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        reason = f"it has more than {most_bytes} bytes"
        raise OSError(errno.EFBIG, reason, os.fspath(path))
    return content


def read_text(path: str | os.PathLike[str], most_bytes: int = MOST_TEXT_BYTES) -> str:
    """Return the content as text; errors of `read_bytes`, and `UnicodeDecodeError`."""
    return read_bytes(path, most_bytes).decode("utf-8")


def write_new(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file, replacing an existing file or link; links are never followed."""
    with suppress(FileNotFoundError):
        os.unlink(path)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o666), "wb") as file:
        file.write(content)


def _check(found: os.stat_result, path: str | os.PathLike[str]) -> None:
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    if not stat.S_ISREG(found.st_mode):
        kind = _KINDS.get(stat.S_IFMT(found.st_mode), "something else")
        reason = f"it is {kind}, and a regular file was expected"
        raise OSError(errno.EINVAL, reason, os.fspath(path))
