"""Distribution of cases over devices, if each case on every device would take too long."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest


def in_turn(cases: Iterable[Any], ways: Sequence[Any], *turns: Sequence[str]) -> list[Any]:
    """Return every case in every way; one of several similar ways is quick, the others are slow.

    Parameters
    ----------
    cases
        Values of a parameter, or tuples for several parameters.
    ways
        Results of ``pytest.param``, with names.
    turns
        Names of ways that take turns from case to case: one list per kind.
    """
    listed = []
    for index, case in enumerate(cases):
        values = case if isinstance(case, tuple) else (case,)
        for way in ways:
            spared = any(way.id in alike and way.id != alike[index % len(alike)] for alike in turns)
            marks = [*way.marks, *([pytest.mark.slow] if spared else [])]
            name = "-".join(map(str, (*values, way.id)))
            listed.append(pytest.param(*values, *way.values, marks=marks, id=name))
    return listed
