"""Where the C files lie that are compiled on users' machines, for other machines."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).parents[1]


def native_folder(name: str) -> Path:
    """Return a folder of ``native``: inside the installed package, or beside it in the tree."""
    installed = _PACKAGE / "native_sources" / name
    return installed if installed.is_dir() else _PACKAGE.parent / "native" / name
