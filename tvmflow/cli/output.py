"""Printing: results go to standard output, everything else to standard error."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ..ir.units import counted
from .text import ms_text

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    Cell = str | int | None


_MAX_LAUNCHES = 200


@dataclasses.dataclass
class State:
    """The options of every command, and the signal that arrived."""

    verbose: bool = False
    quiet: bool = False
    debug: bool = False
    json: bool = False
    signal: int | None = None

    def reset(self) -> None:
        """Forget what an earlier command of this process was told."""
        self.__init__()  # type: ignore[misc]


state = State()


def err_console() -> Console:
    """Return the console for progress and errors."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, soft_wrap=True)


def out_console() -> Console:
    """Return the console for results."""
    from rich.console import Console

    return Console(highlight=False)


def give_room(console: Console, width: int) -> None:
    """Let a console that is no terminal have this width: files have room for all of it."""
    if not console.is_terminal:
        console.width = max(console.width, width)


def note(*parts: str | tuple[str, str]) -> None:
    """Print text for people, unless they want none: parts with or without a style."""
    from rich.text import Text

    if not state.quiet:
        # Not markup: names of files may contain brackets.
        err_console().print(Text.assemble(*parts))


def note_file(path: Path, about: str = "") -> None:
    """Print that a file was written."""
    note(("Wrote", "green"), " ", (str(path), "bold"), about)


def print_json(value: object) -> bool:
    """Print a result as strict JSON if that is asked for, and tell whether it is."""
    if state.json:
        import json

        typer.echo(json.dumps(_strict(value), indent=2, ensure_ascii=False, allow_nan=False))
    return state.json


def _strict(value: object) -> object:
    """Replace what JSON lacks: records become objects, paths, infinity and NaN strings."""
    if dataclasses.is_dataclass(value):
        value = {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
    elif isinstance(value, tuple) and hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Path) or (isinstance(value, float) and not math.isfinite(value)):
        return str(value)
    if isinstance(value, dict):
        return {str(key): _strict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(item) for item in value]
    return value


def print_table(
    title: str | None,
    columns: Sequence[str],
    rows: Iterable[Sequence[Cell]],
    console: Console | None = None,
) -> None:
    """Print a table as `table` makes it, below its title if it has one."""
    _print_section(title, table(columns, rows), console)


def print_facts(
    title: str, rows: Iterable[tuple[str, Cell]], console: Console | None = None
) -> None:
    """Print names and values below a title; those without a value (``None``) are left out."""
    from rich.table import Table

    result = Table(box=None, pad_edge=False, show_header=False)
    result.add_column(style="dim")
    result.add_column()
    _add_rows(result, (row for row in rows if row[1] is not None))
    _print_section(title, result, console)


def table(columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> Table:
    """Return a table; columns whose title begins with ``>`` are aligned to the right."""
    from rich import box
    from rich.table import Table

    result = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        right = column.startswith(">")
        result.add_column(column.lstrip(">"), justify="right" if right else "left")
    _add_rows(result, rows)
    return result


def _add_rows(table: Table, rows: Iterable[Sequence[Cell]]) -> None:
    from rich.text import Text

    for row in rows:
        # As text, not markup: names of tensors may contain brackets.
        table.add_row(*("" if cell is None else Text(str(cell)) for cell in row))


def _print_section(title: str | None, content: Table, console: Console | None) -> None:
    from rich.text import Text

    console = console or out_console()
    if title is None:
        console.print(content)
        return
    console.print(Text(title, style="bold"))
    console.print(content)
    console.print()


def print_launches(
    columns: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    total_us: float,
    *,
    by_device: bool,
    console: Console | None = None,
) -> None:
    """Print kernels' launches, the first of them if there are many, below their time in total."""
    console = console or out_console()
    clock = "by the device's clock" if by_device else "by the host's clock, around each call"
    launches = counted(len(rows), "launch", "launches")
    title = f"{launches} a run, {ms_text(total_us / 1e3)} in total, {clock}"
    print_table(title, columns, rows[:_MAX_LAUNCHES], console)
    if len(rows) > _MAX_LAUNCHES:
        console.print(f"… {len(rows) - _MAX_LAUNCHES} more; --json has all")
