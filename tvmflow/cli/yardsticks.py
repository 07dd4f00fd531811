"""Printing of another engine's times next to a network's layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .output import print_table
from .text import ms_text

if TYPE_CHECKING:
    from rich.console import Console

    from ..explain.yardstick.measured import Yardstick


def print_yardsticks(
    layers: Sequence[tuple[str, Yardstick | None]], title: str, console: Console
) -> None:
    """Print a row for each layer with measured times, below a title that names the layers."""
    from ..explain.yardstick.measured import ENGINE, GPUS, NOTE

    known = [(name, each) for name, each in layers if each is not None]
    if not known:
        console.print(f"{ENGINE} was measured with no operator near those of this network.")
        return
    has_own = any(each.own_us is not None for _, each in known)
    columns = [title, "operator", "measured", *([">here"] if has_own else [])]
    rows = [
        [
            *(name, str(each.operator), each.measured_text),
            *([ms_text((each.own_us or 0) / 1e3)] if has_own else []),
            *(ms_text(each.us[gpu] / 1e3) for gpu in GPUS.values()),
        ]
        for name, each in known
    ]
    columns += [f">{gpu}" for gpu in GPUS.values()]
    print_table(ENGINE, columns, rows, console, spare=[title])
    console.print(NOTE)
