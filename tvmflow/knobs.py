"""Knobs of schedules as a user writes them: ``{"fused_conv2d_relu": {"tile_h": 2, ...}}``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .errors import CompileError
from .tables import read_table

_EXAMPLE = '{"pool": {"tile_h": 4, "tile_w": 8, "stage_input": true, "group_size": 1}}'
_REMEDY = "Write names of primary functions, each with an object of its knobs."


def read_knobs_file(path: Path) -> dict[str, dict[str, Any]]:
    """Read knobs by the name of the primary function.

    Whether they fit is seen when the function is scheduled.

    Raises
    ------
    CompileError
        If the file cannot be read, or is not of that form.
    """
    content = read_table(path, "The knobs", _EXAMPLE, _REMEDY)
    for name, knobs in content.items():
        if not isinstance(knobs, dict):
            raise CompileError(
                f"The knobs of {name} in {path} should be an object, but are {knobs!r}.",
                remedy=_REMEDY,
            )
    return content
