"""Atomic output: files appear complete under their final names, or not at all.

Files are written to a hidden folder next to their final names, on the same
file system, and moved into place when they are finished.  The folder is removed
if the work ends early (an error, Ctrl-C, a signal turned into an exception).
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ..errors import ArtifactError
from ..runtime.regular_files import open_file

#: Error codes of a full disk; such errors name no file.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_SUFFIX = ".tmp"


@dataclass(frozen=True)
class Kind:
    """A kind of output file, used to avoid replacing a user's file of another kind."""

    name: str  #: A noun with its article.
    is_of: Callable[[Path], bool]  #: Whether a file is of this kind.

    def check(self, path: Path, *, remedy: str = "Name another file, or remove this one.") -> None:
        """Raise `ArtifactError` if a non-empty file of another kind would be replaced."""
        try:
            found = os.stat(path)
            if stat.S_ISDIR(found.st_mode):
                return  # `staging` reports it, with a remedy.
            is_safe = stat.S_ISREG(found.st_mode) and (not found.st_size or self.is_of(path))
        except FileNotFoundError:
            return
        except OSError:
            is_safe = False
        if not is_safe:
            raise ArtifactError(
                f"Writing {path} failed: it would replace a file that is not {self.name}.",
                remedy=remedy,
            )


def begins_with(*starts: bytes) -> Callable[[Path], bool]:
    """Return a predicate for files that begin with one of these byte strings."""
    return lambda path: _beginning(path).startswith(starts)


def _beginning(path: Path) -> bytes:
    with open_file(path) as file:
        return file.read(1024)


#: Bytes that do not occur in text, but near the beginning of models, modules and archives.
_NOT_TEXT = bytes(set(range(32)) - set(b"\t\n\v\f\r\x1b"))

TEXT = Kind("a text", lambda path: not set(_beginning(path)) & set(_NOT_TEXT))
ZIP = Kind("a ZIP archive, as .npz and .aar are", begins_with(b"PK"))
GZIP = Kind("a .gz archive", begins_with(b"\x1f\x8b"))
#: The first field of a serialized ``ModelProto`` is its version.
ONNX = Kind("an ONNX model", begins_with(b"\x08"))


@contextmanager
def staging(path: str | os.PathLike[str], kind: Kind | None = None) -> Iterator[Path]:
    """Yield a new hidden folder next to an output's final name, and remove it afterwards.

    Raises `ArtifactError` if `path` is a folder, its folder is missing or not writable, or a file
    of another kind would be replaced.
    """
    final = Path(path)
    folder = final.parent
    if final.is_dir():
        raise ArtifactError(
            f"Writing {final} failed: a file name was expected, but it is a folder.",
            remedy=f"Name a file in it, such as {final / 'NAME'}.",
        )
    if not folder.is_dir():
        raise ArtifactError(
            f"Writing {final} failed: the folder {folder} does not exist.",
            remedy=f"mkdir -p {folder}",
        )
    if kind is not None:
        kind.check(final)
    try:
        stage = Path(tempfile.mkdtemp(prefix=f".{final.name[:100]}.", suffix=_SUFFIX, dir=folder))
    except OSError as error:
        raise _write_error(final, error) from error
    try:
        yield stage
    except OSError as error:
        # Only errors of writing are translated: an error of reading names another file.
        if error.errno in _FULL or str(error.filename or "").startswith(str(stage)):
            raise _write_error(final, error) from error
        raise
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def write_file(
    path: str | os.PathLike[str], content: str | bytes, kind: Kind | None = None
) -> None:
    """Write a file atomically: readers see the old or the new one; raises as `staging` does."""
    final = Path(path)
    with staging(final, kind) as stage:
        written = stage / final.name
        written.write_bytes(content.encode() if isinstance(content, str) else content)
        publish({written: final})


def check_writable(path: str | os.PathLike[str], kind: Kind | None = None) -> None:
    """Raise now, as `staging` does, if an output could not be written later."""
    with staging(path, kind):
        pass


def require_space(folder: Path, size: int) -> None:
    """Raise `OSError` if the disk is full: LLVM would end the process when a write fails."""
    with tempfile.TemporaryFile(dir=folder) as file:
        try:
            os.posix_fallocate(file.fileno(), 0, size)
        except OSError as error:
            # Other errors mean that the file system does not support the request.
            if error.errno in _FULL:
                raise


def publish(files: Mapping[Path, Path]) -> None:
    """Move finished files to their final names in this order; undo all moves if one fails.

    The file that the user opens comes last, so that the others are there once it is.  Raises
    `ArtifactError` if a file cannot be moved.
    """
    # The mask can only be read by setting it.
    os.umask(umask := os.umask(0o022))
    backups = {source: source.with_name(f"{source.name}.previous") for source in files}
    moved: list[tuple[Path, Path]] = []
    try:
        for source, final in files.items():
            # One rename is atomic by itself; only a set of them has to be undone.
            if len(files) > 1 and final.exists():
                place_copy(final, backups[source])
            os.chmod(source, 0o666 & ~umask)
            os.replace(source, final)
            moved.append((final, backups[source]))
    except BaseException as error:
        for final, backup in reversed(moved):
            with suppress(OSError):
                if backup.exists():
                    os.replace(backup, final)
                else:
                    final.unlink()
        if isinstance(error, OSError):
            raise _write_error(final, error) from error
        raise
    finally:
        for backup in backups.values():
            with suppress(OSError):
                backup.unlink()


def place_copy(source: Path, destination: Path) -> None:
    """Copy `source` to `destination`, by a hard link where possible.

    Published files are never changed in place, so that a hard link is as good as
    a copy; across file systems the bytes are copied.
    """
    try:
        os.link(source, destination)
    except OSError:
        shutil.copyfile(source, destination)


def _write_error(path: Path, error: OSError) -> ArtifactError:
    # Report the final name of a file that is still in a hidden folder.
    hidden = (f for f in reversed(path.parents) if f.name[:1] == "." and f.suffix == _SUFFIX)
    stage = next(hidden, None)
    final = path if stage is None else stage.parent / path.name
    return ArtifactError(
        f"Writing {final} failed: {error.strerror or error}.",
        remedy="Check the free space and the permissions of the folder, or choose another one.",
    )
