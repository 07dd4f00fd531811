"""Knobs whose kernels drivers compile in seconds."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

#: Limit on copies of a kernel's innermost statement; thousands take drivers minutes.
MOST_COPIES = 36
#: Taps of the windows in the networks that use this.
WINDOW = 9


def is_quick(knobs: Any) -> bool:
    """Return whether a tile is small, including its unrolled sum."""
    values = dataclasses.asdict(knobs)
    sizes = [
        value
        for name, value in values.items()
        if name.startswith(("tile_", "unroll_")) and type(value) is int
    ]
    return math.prod(sizes) * (WINDOW if values.get("unroll_window") else 1) <= MOST_COPIES
