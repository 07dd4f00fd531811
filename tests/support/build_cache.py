"""Results of compilers, kept in pytest's cache while command and sources stay the same."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path


@cache
def _folder() -> Path:
    """Return the folder next to the built programs; later changes of the variable do not matter.

    It is found at the first use: this module may be imported before pytest sets the variable.
    """
    return Path(os.environ.get("TVMFLOW_CACHE_DIR") or tempfile.mkdtemp()).with_name("builds")


def cached_build(
    name: str, command: Sequence[str], sources: Iterable[Path], build: Callable
) -> Path:
    """Return a folder of results; ``build`` writes them if they are missing.

    Parameters
    ----------
    name
        Name of the results, for readers of the cache.
    command
        Compiler and options.
    sources
        Files whose content matters, headers included.
    build
        Writes the results to the empty folder that it gets.
    """
    of_command = f"{name}_{hashlib.sha256(repr(list(command)).encode()).hexdigest()[:16]}"
    digest = hashlib.sha256()
    for source in sorted(sources):
        digest.update(f"{source}\0".encode() + source.read_bytes())
    kept = _folder()
    folder = kept / f"{of_command}_{digest.hexdigest()[:16]}"
    if folder.exists():
        return folder
    kept.mkdir(parents=True, exist_ok=True)
    for older in kept.glob(f"{of_command}_*"):
        if older != folder:
            shutil.rmtree(older, ignore_errors=True)
    fresh = Path(tempfile.mkdtemp(dir=kept))
    try:
        build(fresh)
        fresh.rename(folder)
    except OSError:
        # Another process finished first.
        if not folder.exists():
            raise
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return folder
