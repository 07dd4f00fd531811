"""Tuning journals that ship with the package, one file a device; README.md says where from.

``find_journal`` finds them by name, in an installed package and in the tree.
"""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent


def shipped() -> list[str]:
    """Names of the journals that ship with the package."""
    return sorted(path.stem for path in FOLDER.glob("*.journal"))


def find_journal(path: Path) -> Path:
    """A journal's file; the name of a shipped one stands for that, unless there is such a file."""
    if not path.exists() and str(path) in shipped():
        return FOLDER / f"{path}.journal"
    return path
