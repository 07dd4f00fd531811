"""Storage of single tensors as the user asks for it: ``{"stem_Clip": "buffer"}``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ...errors import CompileError, nearest


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
