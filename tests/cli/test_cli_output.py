"""What commands print fits terminals, is whole in pipes, and is text without markup."""

from __future__ import annotations

import io
import re

import pytest
import typer
from rich.console import Console

from tvmflow.cli.app import app
from tvmflow.cli.output import print_table
from tvmflow.cli.text import plain_text
from tvmflow.schedules import FAMILIES

MARKUP = re.compile(r"``|:\w+:`")
SHORT = (["name", ">size"], [("x", "64 B"), ("y", None)])
LONG_TEXT = (["tensor", "why", ">size"], [("q" * 30, "because " * 20, "1.25 GB"), ("y", "", 7)])
MANY_COLUMNS = (
    ["tensor", *(f"fact {n}" for n in range(5)), *(f">number {n}" for n in range(6))],
    [(f"layer{row}/Conv", *["NCHW4c"] * 5, *[10**6 + row] * 6) for row in range(3)],
)


def printed(columns, rows, *, width: int) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    print_table("Title", columns, rows, console)
    return console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize("width", [60, 80, 200])
@pytest.mark.parametrize("content", [SHORT, LONG_TEXT, MANY_COLUMNS])
def test_tables_fit_terminals_and_leave_nothing_out(content, width):
    columns, rows = content
    text = printed(columns, rows, width=width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    for row in rows:
        for column, cell in zip(columns, row, strict=True):
            # Numbers are whole, and text is folded between words, or after 10 letters.
            whole = [str(cell)] if column.startswith(">") else str(cell).split()
            for part in whole if cell is not None else ():
                assert (part if column.startswith(">") else part[:10]) in text
    if content is LONG_TEXT:
        assert text.count("q") == 30


def test_rows_are_paragraphs_where_columns_do_not_fit():
    text = printed(*MANY_COLUMNS, width=80)
    assert "\nlayer2/Conv\n  fact 0 NCHW4c, fact 1 NCHW4c" in text
    assert "number 5 1000002" in " ".join(text.split())
    numbered = printed([">block", *["long title"] * 9], [(3, *["words"] * 9)], width=60)
    assert "\nblock 3\n" in numbered


def test_pipes_have_whole_lines(cli, compiled, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    text = cli("inspect", compiled, "--memory", "--schedules").stdout
    assert "…" not in text
    (row,) = [line for line in text.splitlines() if line.startswith("s ") and "–" in line]
    assert "NCHW16c" in row
    assert "fused_relu_unpack, fused_unpack_greater" in row


def walk(command, path=()):
    yield path, command
    for name, sub in getattr(command, "commands", {}).items():
        yield from walk(sub, (*path, name))


def test_no_help_has_markup_of_docstrings(cli):
    for path, _command in walk(typer.main.get_command(app)):
        assert not MARKUP.search(cli(*path, "--help").stdout), path


def test_summaries_of_schedules_have_no_markup(cli):
    assert any(MARKUP.search(str(family.__doc__)) for family in FAMILIES)
    assert not MARKUP.search(cli("schedules").stdout)
    assert plain_text("Products of :mod:`.gemm` in\n``fp16``.\n\nMore.") == (
        "Products of gemm in fp16."
    )
