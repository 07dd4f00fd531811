"""Small files of names and values that users write: JSON, or TOML in a file ``*.toml``."""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .errors import CompileError


def read_table(path: Path, what: str, example: str, remedy: str) -> dict[str, Any]:
    """Read a file of names and values: a JSON object, or a TOML table in a file ``*.toml``.

    Parameters
    ----------
    path
        The file.
    what
        What it holds, to begin a message with.
    example
        Such an object.
    remedy
        What to do where the file holds something else.

    Raises
    ------
    CompileError
        If the file cannot be read, or is not of that form.
    """
    try:
        text = path.read_text(encoding="utf-8")
        content = _toml(path, text) if path.suffix == ".toml" else _json(text)
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise CompileError(
            f"{what} in {path} could not be read: {reason}.",
            remedy=f"Write a JSON object such as {example}, or a TOML table in a file whose "
            "name ends in .toml.",
        ) from error
    if not isinstance(content, dict):
        raise CompileError(
            f"{what} in {path} should be an object of names and values, but are of type "
            f"{type(content).__name__}.",
            remedy=remedy,
        )
    return content


def check_values(content: Mapping[Any, Any], values: Sequence[str], what: str, remedy: str) -> None:
    """Refuse what is none of ``values``; ``what`` is said of each name, behind "The".

    Raises
    ------
    CompileError
        Naming the first one and what was asked for it.
    """
    for name, value in content.items():
        if value not in values:
            hint = " Quote names with dots in TOML." if isinstance(value, dict) else ""
            raise CompileError(
                f"The {what} {name!r} is {value!r}; expected one of {', '.join(values)}.",
                remedy=remedy + hint,
            )


def _json(text: str) -> Any:
    def without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        content = dict(pairs)
        if len(content) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"the name {twice!r} comes twice")
        return content

    return json.loads(text, object_pairs_hook=without_repetition)


def _toml(path: Path, text: str) -> Any:
    if sys.version_info >= (3, 11):
        import tomllib

        return tomllib.loads(text)
    raise ValueError(f"reading TOML needs Python 3.11 or newer, so {path.stem}.json is needed")


def nearest(name: str, known: Sequence[str], aliases: Mapping[str, str]) -> str:
    """``; the nearest are …``, for an error about an unknown name; empty where none is near.

    Parameters
    ----------
    known
        The names that there are.
    aliases
        Names of them by other names that a user may have meant.
    """
    names = [*known, *(alias for alias, meant in aliases.items() if meant in known)]
    near = list(dict.fromkeys(difflib.get_close_matches(name, names, n=4, cutoff=0.5)))
    return f"; the nearest are {', '.join(near)}" if near else ""
