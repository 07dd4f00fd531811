"""Algorithms of single convolutions as the user asks for them: ``{"conv1": "winograd4"}``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ...errors import CompileError, nearest
from ...ir.rewriter import identifier


def resolve_algorithms(
    algorithms: Mapping[str, str], convolutions: Iterable[str], aliases: Mapping[str, str]
) -> dict[str, str]:
    """Algorithms by the names of the convolutions that there are.

    Parameters
    ----------
    algorithms
        As the user wrote them.
    convolutions
        Names of the convolutions: those of their nodes.
    aliases
        Names of nodes by those of the tensors that they write.

    Raises
    ------
    CompileError
        If a name is that of no convolution; it lists the nearest.
    """
    known = list(convolutions)
    result: dict[str, str] = {}
    for name, algorithm in algorithms.items():
        found = next((n for n in (name, identifier(name), aliases.get(name)) if n in known), None)
        if found is None:
            raise CompileError(
                f"The algorithms name {name!r}, which is no convolution with constant weights"
                f"{nearest(name, known, aliases)}.",
                remedy="Compile with -v, which prints the name of every convolution.",
            )
        if result.get(found, algorithm) != algorithm:
            raise CompileError(
                f"The algorithms ask for both {result[found]} and {algorithm} for the convolution "
                f"{found}, which {name!r} is another name of.",
                remedy="Name each convolution once.",
            )
        result[found] = algorithm
    return result
