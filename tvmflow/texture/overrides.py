"""Storage of single tensors as the user asks for it: ``{"stem_Clip": "buffer"}``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..errors import CompileError
from ..tables import check_values, nearest, read_table

#: What a tensor may be asked to be.
VALUES = ("texture", "buffer")
#: What an input or output of the model may be kept as, see :mod:`.keep`.
KEPT_FORMS = ("nchw4c", "texture")
_REMEDY = 'Write names of tensors with "texture" or "buffer" behind them.'


def read_overrides(path: Path) -> dict[str, str]:
    """Read a file of overrides: a JSON object, or a TOML table in a file ``*.toml``.

    Raises
    ------
    CompileError
        If the file cannot be read, or is not of that form.
    """
    content = read_table(path, "The storage overrides", '{"conv1": "texture"}', _REMEDY)
    check_overrides(content)
    return content


def check_overrides(overrides: Mapping[Any, Any]) -> None:
    """Refuse storage that does not exist.

    Raises
    ------
    CompileError
        Naming the tensor and what was asked for it.
    """
    check_values(overrides, VALUES, "storage override of the tensor", _REMEDY)


def check_keep_layout(kept: Mapping[Any, Any]) -> None:
    """Refuse forms that do not exist.

    Raises
    ------
    CompileError
        Naming the tensor and what was asked for it.
    """
    for name, form in kept.items():
        if form not in KEPT_FORMS:
            raise CompileError(
                f"The layout to keep of {name!r} is {form!r}; expected one of "
                f"{', '.join(KEPT_FORMS)}.",
                remedy=f"Write --keep-layout {name}=nchw4c for a buffer, or {name}=texture.",
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
    inside = (
        " It is computed inside a primary function and is never stored." if name in aliases else ""
    )
    return CompileError(
        f"The storage override {name!r} names no tensor between primary functions"
        f"{nearest(name, known, aliases)}.{inside}",
        remedy="Compile with -v, which prints the name of every tensor.",
    )
