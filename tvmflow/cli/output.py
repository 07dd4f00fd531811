"""Printing: results to standard output, everything else to standard error."""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

import typer

from ..ir.units import counted
from .text import escape_controls, ms_text

if TYPE_CHECKING:
    from rich.console import Console, Group
    from rich.table import Table

    Cell = str | int | None


_MAX_LAUNCHES = 200
_BROKEN_PIPE = 141  # 128 + SIGPIPE, as shells report it
#: Width of files and pipes, which have no line length.
_ROOM = 10_000
#: Columns of text are at least this wide, or as wide as their longest word.
_LEAST = 10
#: Seconds without output after which a spinner shows that a command is working, seconds for each
#: frame of the spinner, and seconds between messages if there is no terminal.
_PATIENCE_S, _TURN_S, _BEAT_S = 0.5, 0.2, 60.0
_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
#: Characters between two columns of a table.
_GAP = 3


@dataclasses.dataclass
class State:
    """The options of every command, and the signal that arrived."""

    verbose: bool = False
    quiet: bool = False
    debug: bool = False
    json: bool = False
    signal: int | None = None
    answered: bool = False  #: Whether a result was printed as JSON.

    def reset(self) -> None:
        """Reset the options of an earlier command in this process."""
        self.__init__()  # type: ignore[misc]


state = State()


class Waiting:
    """A line on the terminal that shows that a command is working, until it prints something.

    If standard error is not a terminal, it is a line a minute, until the command ends.  The class
    needs neither TVM nor rich, whose imports take the first seconds.
    """

    def __init__(self) -> None:
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._beats = False

    def start(self, *, beats: bool = True) -> None:
        """Show the line after a moment on a terminal; elsewhere print messages if ``beats``."""
        dumb = os.environ.get("TERM") in (None, "", "dumb", "unknown")
        self._beats = dumb or not sys.stderr.isatty()
        if state.json or state.quiet or state.verbose or (self._beats and not beats):
            return
        self._stopped.clear()
        work = self._beat if self._beats else self._run
        self._thread = threading.Thread(target=work, args=(sys.stderr,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Remove the line before anything else is printed."""
        if not self._beats:
            self.end()

    def end(self) -> None:
        """Stop all messages, as the command has ended."""
        if self._thread is not None:
            self._stopped.set()
            self._thread.join()
            self._thread = None

    def _beat(self, stream: TextIO) -> None:
        began = time.monotonic()
        while not self._stopped.wait(_BEAT_S):
            stream.write(f"Working, {time.monotonic() - began:.0f} s.\n")
            stream.flush()

    def _run(self, terminal: TextIO) -> None:
        began = time.monotonic()
        if self._stopped.wait(_PATIENCE_S):
            return
        for picture in itertools.cycle(_SPINNER):
            terminal.write(f"\r{picture} working, {time.monotonic() - began:.0f} s")
            terminal.flush()
            if self._stopped.wait(_TURN_S):
                break
        terminal.write("\r\x1b[2K")
        terminal.flush()


waiting = Waiting()


def err_console() -> Console:
    """Return the console for progress and errors, and remove the line of `waiting`."""
    from rich.console import Console

    waiting.stop()
    return _escaping(Console(stderr=True, highlight=False, soft_wrap=True))


def out_console() -> Console:
    """Return the console for results; on anything but a terminal its lines are not folded."""
    from rich.console import Console

    waiting.stop()
    console = _escaping(Console(highlight=False))
    # Rich itself would end the program with status 1.
    console.on_broken_pipe = leave_broken_pipe  # type: ignore[method-assign]
    if not console.is_terminal:
        console.width = _ROOM
    return console


def _escaping(console: Console) -> Console:
    """Let a console escape characters that a terminal would obey.

    Names in networks, and keys and versions from the network, may contain any characters.
    """
    from rich.console import ConsoleOptions, RenderableType, RenderHook, RenderResult
    from rich.segment import Segment

    class Escaped:
        def __init__(self, content: RenderableType):
            self.content = content

        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            for text, style, control in console.render(self.content, options):
                # Rich's own cursor movements are segments of their own kind.
                yield Segment(text if control else escape_controls(text), style, control)

    class Hook(RenderHook):
        def process_renderables(self, renderables: list[Any]) -> list[Any]:
            return [Escaped(renderable) for renderable in renderables]

    console.push_render_hook(Hook())
    return console


def leave_broken_pipe() -> NoReturn:
    """Exit quietly because the reader is gone (``tvmflow inspect … | head``)."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise SystemExit(_BROKEN_PIPE) from None


def note(*parts: str | tuple[str, str]) -> None:
    """Print text in parts with or without a style, unless ``--quiet`` is given."""
    from rich.text import Text

    if not state.quiet:
        # Not as markup: file names may contain brackets.
        err_console().print(Text.assemble(*parts))


def note_file(path: Path, about: str = "") -> None:
    """Report that a file was written."""
    note(("Wrote", "green"), " ", (str(path), "bold"), about)


def print_json(value: object) -> bool:
    """Print a result as strict JSON with ``--json``; return whether JSON is requested."""
    if state.json:
        import json

        state.answered = True
        text = json.dumps(_strict(value), indent=2, ensure_ascii=False, allow_nan=False)
        # Control characters occur in strings only, where JSON has the same escapes.
        typer.echo(escape_controls(text))
    return state.json


def print_json_error(
    kind: str, message: str, remedy: str | None, details: str | None, status: int
) -> None:
    """Print an error as JSON with ``--json``, unless a result was already printed as JSON."""
    if state.json and not state.answered:
        about = {"type": kind, "message": message, "remedy": remedy, "details": details}
        print_json({"error": about, "status": status})


def _strict(value: object) -> object:
    """Convert to strict JSON: records to objects; paths, infinity and NaN to strings."""
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
    spare: Sequence[str] = (),
) -> None:
    """Print a table, below its title if it has one.

    If it is too wide for the terminal, columns in ``spare`` are left out, the first ones first; if
    it still does not fit, each row becomes a paragraph with all columns.
    """
    console, rows = console or out_console(), [*rows]
    fitting, fewer = without_spare(columns, rows, console.width, spare)
    if _widths(fitting, fewer, console.width) is None:
        _print_section(title, _paragraphs(columns, rows), console)
        return
    _print_section(title, table(fitting, fewer, console.width), console)
    if len(fitting) < len(columns):
        console.print("A wider terminal shows more columns; --json has all.")


def without_spare(
    columns: Sequence[str], rows: Sequence[Sequence[Cell]], width: int, spare: Sequence[str]
) -> tuple[list[str], list[list[Cell]]]:
    """Return a table's columns and rows without the spare columns that do not fit."""
    kept, cells = [*columns], [[*row] for row in rows]
    for name in spare:
        if _widths(kept, cells, width) is not None:
            break
        index = kept.index(name)
        del kept[index]
        for row in cells:
            del row[index]
    return kept, cells


def print_facts(
    title: str, rows: Iterable[tuple[str, Cell]], console: Console | None = None
) -> None:
    """Print names and values below a title, without the names whose value is ``None``."""
    from rich.table import Table

    result = Table(box=None, pad_edge=False, show_header=False)
    result.add_column(style="dim")
    result.add_column()
    _add_rows(result, (row for row in rows if row[1] is not None))
    _print_section(title, result, console)


def table(columns: Sequence[str], rows: Sequence[Sequence[Cell]], width: int = _ROOM) -> Table:
    """Return a table; columns whose title begins with ``>`` are aligned to the right.

    Columns of text are folded if the table is wider than ``width`` characters.
    """
    from rich import box
    from rich.table import Table

    result = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    widths: Sequence[int | None] = _widths(columns, rows, width) or [None] * len(columns)
    for column, wide in zip(columns, widths, strict=True):
        right = column.startswith(">")
        result.add_column(
            column.lstrip(">"),
            justify="right" if right else "left",
            overflow="fold",
            width=wide,
        )
    _add_rows(result, rows)
    return result


def _widths(columns: Sequence[str], rows: Sequence[Sequence[Cell]], width: int) -> list[int] | None:
    """Return column widths that fit, with unbroken numbers and words, or ``None``."""
    from rich.cells import cell_len

    whole, least = [], []
    for column, *cells in zip(columns, *rows, strict=True):
        title, texts = column.lstrip(">"), ["" if cell is None else str(cell) for cell in cells]
        whole.append(max(cell_len(text) for text in (title, *texts)))
        words = max(cell_len(word) for text in (title, *texts) for word in text.split() or [""])
        titles = max(cell_len(word) for word in title.split() or [""])
        numbers = max([titles, *map(cell_len, texts)])
        least.append(numbers if column.startswith(">") else min(_LEAST, words))
    room = width - _GAP * (len(columns) - 1) - sum(least)
    if room < 0:
        return None
    # Columns that need little more get it; the others share the rest.
    found = list(least)
    order = sorted(range(len(columns)), key=lambda index: whole[index] - least[index])
    for count, index in enumerate(order):
        more = min(whole[index] - least[index], room // (len(order) - count))
        found[index] += more
        room -= more
    return found


def _paragraphs(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> Group:
    """Return a paragraph for each row: its first cell, and below it the others with titles."""
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    parts: list[Text | Padding] = []
    first, *titles = (column.lstrip(">") for column in columns)
    for row in rows:
        head = str(row[0]) if isinstance(row[0], str) else f"{first} {row[0]}"
        facts = [
            f"{title} {cell}".strip()
            for title, cell in zip(titles, row[1:], strict=True)
            if cell not in (None, "")
        ]
        parts.append(Text(head, overflow="fold"))
        parts.append(Padding(Text(", ".join(facts), overflow="fold"), (0, 0, 0, 2), expand=False))
    return Group(*parts)


def _add_rows(table: Table, rows: Iterable[Sequence[Cell]]) -> None:
    from rich.text import Text

    for row in rows:
        # As text, not as markup: names of tensors may contain brackets.
        table.add_row(*("" if cell is None else Text(str(cell)) for cell in row))


def _print_section(title: str | None, content: Table | Group, console: Console | None) -> None:
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
    """Print launches of kernels below their total time, and only the first if there are many."""
    console = console or out_console()
    clock = "by the device's clock" if by_device else "by the host's clock, around each call"
    launches = counted(len(rows), "launch", "launches")
    title = f"{launches} a run, {ms_text(total_us / 1e3)} in total, {clock}"
    print_table(title, columns, rows[:_MAX_LAUNCHES], console)
    if len(rows) > _MAX_LAUNCHES:
        console.print(f"… {len(rows) - _MAX_LAUNCHES} more; --json has all")
