"""Storage of single tensors as the user asks for it: ``{"stem_Clip": "buffer"}``."""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..errors import CompileError

#: What a tensor may be asked to be.
VALUES = ("texture", "buffer")
_REMEDY = 'Write names of tensors with "texture" or "buffer" behind them.'


def read_overrides(path: Path) -> dict[str, str]:
    """Read a file of overrides: a JSON object, or a TOML table in a file ``*.toml``.

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
            f"The storage overrides in {path} could not be read: {reason}.",
            remedy='Write a JSON object such as {"conv1": "texture"}, or a TOML table in a file '
            "whose name ends in .toml.",
        ) from error
    if not isinstance(content, dict):
        raise CompileError(
            f"The storage overrides in {path} should be an object of names and values, but are "
            f"of type {type(content).__name__}.",
            remedy=_REMEDY,
        )
    check_overrides(content)
    return content


def check_overrides(overrides: Mapping[Any, Any]) -> None:
    """Refuse storage that does not exist.

    Raises
    ------
    CompileError
        Naming the tensor and what was asked for it.
    """
    for name, storage in overrides.items():
        if storage not in VALUES:
            hint = " Quote names with dots in TOML." if isinstance(storage, dict) else ""
            raise CompileError(
                f"The storage override of the tensor {name!r} is {storage!r}; expected one of "
                f"{', '.join(VALUES)}.",
                remedy=_REMEDY + hint,
            )


def resolve_overrides(
    overrides: Mapping[str, str], tensors: Iterable[str], aliases: Mapping[str, str]
) -> dict[str, str]:
    """Overrides by the names of tensors that there are.

    Parameters
    ----------
    overrides
        As the user wrote them.
    tensors
        Names of the tensors between primary functions.
    aliases
        Other names of tensors: those that the ONNX model has for them.

    Raises
    ------
    CompileError
        If a name is that of no tensor; it lists the nearest.
    """
    known = list(tensors)
    result: dict[str, str] = {}
    for name, storage in overrides.items():
        alias = aliases.get(name, name)
        # What a reader wants in blocks was made and then packed by one primary function.
        found = next((n for n in (name, alias, f"{alias}_blocked") if n in known), None)
        if found is None:
            raise _unknown(name, known, aliases)
        if result.get(found, storage) != storage:
            raise CompileError(
                f"The storage overrides ask for both a texture and a buffer for the tensor "
                f"{found}, which {name!r} is another name of.",
                remedy="Name each tensor once.",
            )
        result[found] = storage
    return result


def _unknown(name: str, known: list[str], aliases: Mapping[str, str]) -> CompileError:
    names = known + [alias for alias, tensor in aliases.items() if tensor in known]
    near = difflib.get_close_matches(name, names, n=4, cutoff=0.5)
    near = list(dict.fromkeys(near))
    nearest = f"; the nearest are {', '.join(near)}" if near else ""
    inside = (
        " It is computed inside a primary function and is never stored." if name in aliases else ""
    )
    return CompileError(
        f"The storage override {name!r} names no tensor between primary functions{nearest}."
        f"{inside}",
        remedy="Compile with -v, which prints the name of every tensor.",
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
