"""Which files are standalone libraries."""

from __future__ import annotations

import os

from .. import elf

#: A function that every standalone library exports, and no other library.
_EXPORTED = b"\0tvmflow_create\0"


def is_standalone(path: str | os.PathLike[str]) -> bool:
    """Whether a file is a library of ``tvmflow compile --standalone``; nothing of it is run."""
    try:
        # Stripping a library, as Android's build does, leaves the names that it exports.
        names = elf.read_library(path).sections.get(".dynstr")
        if names is None:
            return False
        with open(path, "rb") as file:
            file.seek(names.offset)
            return _EXPORTED in file.read(names.bytes)
    except (OSError, elf.ElfError):
        return False
