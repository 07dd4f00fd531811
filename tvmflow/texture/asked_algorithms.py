"""Algorithms of single convolutions as the user asks for them: ``{"conv1": "winograd4"}``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..errors import CompileError
from ..graph.rewriter import identifier
from ..tables import check_values, nearest, read_table
from .algorithms import ALGORITHMS

_REMEDY = f"Write names of convolutions, each with one of {', '.join(ALGORITHMS)}."


def read_algorithms(path: Path) -> dict[str, str]:
    """Read a file of algorithms: a JSON object, or a TOML table in a file ``*.toml``.

    Raises
    ------
    CompileError
        If the file cannot be read, or is not of that form.
    """
    content = read_table(path, "The algorithms", '{"conv1": "winograd4"}', _REMEDY)
    check_algorithms(content)
    return content


def check_algorithms(algorithms: Mapping[Any, Any]) -> None:
    """Refuse algorithms that do not exist.

    Raises
    ------
    CompileError
        Naming the convolution and what was asked for it.
    """
    check_values(algorithms, ALGORITHMS, "algorithm of the convolution", _REMEDY)


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
