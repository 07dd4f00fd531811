"""Folder of modules that sessions compiled, in the user's cache, for later processes.

A file's name has the key of model, options, versions and device, then the extents of its inputs.
Entries that cannot be read are removed.  Processes that want the same entry wait for each other, so
that one compiles it.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ..errors import ArtifactError
from ..module.artifact import SIDECAR_SUFFIX
from ..module.load import load
from ..module.module import Module
from ..runtime.caches import user_cache

logger = logging.getLogger(__name__)

Shape = tuple[int, ...]

#: Limit of the folder's files; the least recently used ones are removed.
MOST_BYTES = 4 << 30
#: Limit of a file's name in bytes on common file systems, minus the sidecar's suffix.
_LONGEST_NAME = 200
_SUFFIX = ".so"


@dataclass(frozen=True)
class Store:
    """The modules of one key; without a folder nothing is kept."""

    folder: Path | None
    key: str

    def path(self, shapes: Sequence[Shape]) -> Path | None:
        """Return the file of the module for these shapes, which may not exist."""
        return self.folder and self.folder / f"{self.key}-{_written(shapes)}{_SUFFIX}"

    def load(self, shapes: Sequence[Shape]) -> Module | None:
        """Return the opened module for these shapes; ``None`` if there is none, or it is damaged.

        Raises `DeviceError` if the device refuses.
        """
        path = self.path(shapes)
        if path is None or not path.is_file():
            return None
        try:
            module = load(path).open()
        except ArtifactError as error:
            logger.warning("A cached module is compiled again: %s", error.message)
            _remove(path)
            return None
        with suppress(OSError):
            os.utime(path)
        return module

    def save(self, module: Module, shapes: Sequence[Shape]) -> Module:
        """Keep a compiled module; return the kept one, or the given one if that is impossible."""
        path = self.path(shapes)
        if path is None:
            return module
        try:
            module.save(path, overwrite=True)
        except (ArtifactError, OSError) as error:
            logger.warning("The module is not kept for later processes: %s", error)
            return module
        _prune(path)
        kept = self.load(shapes)
        if kept is None:
            return module
        module.close()
        return kept

    def shapes(self, count: int) -> list[tuple[Shape, ...]]:
        """Return the shapes of the modules that are kept, each of ``count`` inputs in order."""
        if self.folder is None:
            return []
        found = []
        for path in self.folder.glob(f"{self.key}-*{_SUFFIX}"):
            with suppress(ValueError):
                shapes = _read(path.name[len(self.key) + 1 : -len(_SUFFIX)])
                found += [shapes] if len(shapes) == count else []
        return sorted(found)

    @contextmanager
    def locked(self, shapes: Sequence[Shape]) -> Iterator[None]:
        """Keep other processes from compiling the same module."""
        if self.folder is None:
            yield
            return
        # A few files serve all entries, because a lock's file cannot be removed safely.
        name = hashlib.sha256(str(self.path(shapes)).encode()).hexdigest()[:2]
        try:
            lock = os.open(self.folder / f".lock-{name}", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError:
            yield
            return
        try:
            with suppress(OSError):  # Some network file systems have no locks.
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            with suppress(OSError):
                # Closing would not do: a process that was forked meanwhile has the file open, too.
                fcntl.flock(lock, fcntl.LOCK_UN)
            os.close(lock)


def find_folder() -> Path | None:
    """Return the folder for modules, created if needed; ``None``, with a warning, without one.

    It must belong to the user and be writable for no one else, because its files are executed.
    """
    if os.environ.get("TVMFLOW_CACHE") == "0":
        return None
    folder = Path(os.environ.get("TVMFLOW_CACHE_DIR") or user_cache()) / "modules"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
        if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o022:
            reason = "another user owns it or may write to it"
        elif not os.access(folder, os.W_OK | os.X_OK):
            reason = "it is read-only"
        else:
            return folder
    except OSError as error:
        reason = error.strerror or str(error)
    logger.warning(
        "Compiled modules are not kept for later processes: the folder %s cannot be used (%s). "
        "TVMFLOW_CACHE_DIR names another.",
        folder,
        reason,
    )
    return None


def _written(shapes: Sequence[Shape]) -> str:
    """Return shapes as a part of a file's name: ``1x3x48x320,1``; long ones by their digest."""
    text = ",".join("x".join(map(str, shape)) or "scalar" for shape in shapes)
    return text if len(text) <= _LONGEST_NAME else hashlib.sha256(text.encode()).hexdigest()


def _read(text: str) -> tuple[Shape, ...]:
    """Return the shapes that `_written` wrote; raises `ValueError` for a digest."""
    shapes = [] if not text else text.split(",")
    return tuple(() if s == "scalar" else tuple(map(int, s.split("x"))) for s in shapes)


def _remove(path: Path) -> None:
    for each in (path, path.with_name(path.name + SIDECAR_SUFFIX)):
        with suppress(OSError):
            each.unlink()


def _prune(newest: Path) -> None:
    """Remove the least recently used modules until the folder has at most `MOST_BYTES`."""
    modules: dict[Path, list[os.stat_result]] = {}
    for path in newest.parent.glob(f"*{_SUFFIX}*"):
        with suppress(OSError):
            name = path.name.removesuffix(SIDECAR_SUFFIX)
            modules.setdefault(path.with_name(name), []).append(path.stat())
    total = sum(each.st_size for files in modules.values() for each in files)
    oldest_first = sorted(modules, key=lambda path: max(f.st_mtime_ns for f in modules[path]))
    for path in oldest_first:
        if total <= MOST_BYTES:
            break
        if path != newest:
            total -= sum(each.st_size for each in modules[path])
            _remove(path)
