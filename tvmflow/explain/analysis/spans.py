"""Spans of memory that code touches: how many lines and pages they are on, each counted once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .evaluate import Array
from .hardware import CORE


@dataclass(frozen=True)
class Touched:
    """What some iterations access of a buffer."""

    lines: int
    bytes: int
    pages: int


def touched_by(starts: Array, ends: Array, line_bytes: int) -> Touched:
    """Count what spans cover.

    Parameters
    ----------
    starts, ends
        Bytes from the beginning of a buffer, in any order.
    line_bytes
        Of a line.
    """
    if not starts.size:
        return Touched(0, 0, 0)
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], np.maximum.accumulate(ends[order])
    # What of each span none before it has.
    begin = np.maximum(starts, np.concatenate([starts[:1], ends[:-1]]))
    used = int(np.maximum(ends - begin, 0).sum())
    return Touched(
        _spanned(starts, ends, line_bytes), used, _spanned(starts, ends, CORE.page_bytes)
    )


def _spanned(starts: Array, ends: Array, size: int) -> int:
    """Blocks of memory that ordered spans touch."""
    first, last = starts // size, (ends - 1) // size
    before = np.concatenate([first[:1] - 1, last[:-1]])
    return int(np.maximum(last - np.maximum(before, first - 1), 0).sum())
