"""Output of commands fits terminals, is complete in pipes, and is text without markup."""

from __future__ import annotations

import io
import json
import logging
import re
import time
from itertools import pairwise

import onnx
import pytest
import typer
from rich.console import Console

from tvmflow.cli import output
from tvmflow.cli.app import app
from tvmflow.cli.compile import compile_model
from tvmflow.cli.output import print_facts, print_json, print_table
from tvmflow.cli.text import folded, plain_text
from tvmflow.runtime import notices
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
            # Numbers are never folded; text is folded between words, or after 10 letters.
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


#: Characters that terminals act on: colours, title, C1 controls, bidi override, a lone surrogate.
OBEYED = "a\x1b[31mb\x1b]0;t\x1bc\x9b2Jd\u202ee\ud800"
ESCAPED = r"a\u001b[31mb\u001b]0;t\u001bc\u009b2Jd\u202ee\ud800"


def named(name: str) -> onnx.ModelProto:
    node = onnx.helper.make_node("NoSuchOperator", [name], ["y"], name=f"node of {name}")
    value = [onnx.helper.make_tensor_value_info(n, 1, [1]) for n in (name, "y")]
    graph = onnx.helper.make_graph([node], "g", value[:1], value[1:])
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)])


def test_no_terminal_obeys_names_of_networks(cli, tmp_path):
    name = OBEYED.removesuffix("\ud800")
    onnx.save(named(name), tmp_path / "net.onnx")
    result = cli("compile", "net.onnx", "-o", "net.so")
    result.refused(ESCAPED.removesuffix(r"\ud800"))
    assert not re.search("[\x07\x1b\x9b\u202e]", result.stdout + result.stderr)


def test_results_and_json_escape_what_a_terminal_obeys(monkeypatch, capsys):
    stream = io.StringIO()
    monkeypatch.setattr("sys.stdout", stream)
    print_table(OBEYED, ["name"], [(OBEYED,)])
    print_facts("facts", [(OBEYED, OBEYED)])
    assert stream.getvalue().count(ESCAPED) == 4
    stream.truncate(0)
    monkeypatch.setattr(output.state, "json", True)
    assert print_json({"name": OBEYED, "nice": "1×3 µs"})
    assert stream.getvalue().isascii() is False
    assert not re.search("[\x07\x1b\x9b\u202e\ud800]", stream.getvalue())
    assert json.loads(stream.getvalue().strip("\0")) == {"name": OBEYED, "nice": "1×3 µs"}


def walk(command, path=()):
    yield path, command
    for name, sub in getattr(command, "commands", {}).items():
        yield from walk(sub, (*path, name))


@pytest.mark.parametrize("width", [60, 80, 200])
def test_narrow_terminals_get_no_spare_columns(width):
    columns, rows = MANY_COLUMNS
    columns = [name.replace(" ", "_") for name in columns]
    spare = ("fact_0", "fact_1", ">number_5", "fact_2", "fact_3", "fact_4", ">number_4")
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    print_table("Title", columns, rows, console, spare)
    text = console.file.getvalue()
    assert max(map(len, text.splitlines())) <= width
    gone = [name for name in columns if name.lstrip(">") not in text]
    # The first columns are dropped first, and none without need.
    assert {*gone} == {*spare[: len(gone)]}
    assert bool(gone) == (width < 200) == ("A wider terminal" in text)


def test_no_help_shows_markup_or_where_lines_of_the_source_end(monkeypatch, cli):
    monkeypatch.setenv("COLUMNS", "80")
    for path, command in walk(typer.main.get_command(app)):
        for paragraph in (command.help or "").split("\n\n"):
            lines = paragraph.split("\n")
            assert all(line.startswith((" ", "- ")) for line in lines[1:]), (path, paragraph)
        text = cli(*path, "--help").stdout
        assert not MARKUP.search(text), path
        printed = text.splitlines()
        assert max(map(len, printed)) <= 80
        # Lines that rich broke, and `folded` did not, begin at the left edge.
        for before, line in pairwise(printed):
            assert not (re.match("   +\\S", before) and re.match(r" ?[^\s│╭╰]", line)), (path, line)


def test_what_stands_below_options_is_folded():
    text = """
[bold]Examples[/bold]
  tvmflow compile net.onnx --device adreno --host android-arm64 -o libnet.so
      one library for an Android app: network, kernels and runtime, with what it needs
      of C
  0    done, and nothing is left to do for whoever has called it with that network"""
    assert (
        folded(text, 60)
        == """
[bold]Examples[/bold]
  tvmflow compile net.onnx --device adreno \\
      --host android-arm64 -o libnet.so
      one library for an Android app: network, kernels and
      runtime, with what it needs of C
  0    done, and nothing is left to do for whoever has
       called it with that network"""
    )
    assert folded(text, 200).count("\n") == text.count("\n") - 1


def test_options_of_compile_are_in_panels(cli):
    printed = cli("compile", "--help").stdout
    titles = re.findall("╭─ ([^─]*) ─", printed)
    assert titles == [
        "Arguments", "Options", "Apps and phones", "Pictures and results", "Precision", "Expert",
        "Common options",
    ]  # fmt: skip
    options = {one.name for one in typer.main.get_command(app).commands["compile"].params}
    assert {*compile_model.panels} <= options


def test_summaries_of_schedules_have_no_markup(cli):
    assert any(MARKUP.search(str(family.__doc__)) for family in FAMILIES)
    assert not MARKUP.search(cli("schedules").stdout)
    assert plain_text("Products of :mod:`.gemm` in\n``fp16``.\n\nMore.") == (
        "Products of gemm in fp16."
    )


def test_where_no_person_watches_a_long_command_says_once_in_a_while_that_it_works(
    cli, monkeypatch
):
    def slow():
        time.sleep(0.05)
        return []

    monkeypatch.setattr("tvmflow.runtime.devices.list_devices", slow)
    assert "Working" not in cli("devices").stderr
    monkeypatch.setattr(output, "_BEAT_S", 0.01)
    assert "Working, 0 s." in cli("devices").stderr
    for options in (["--json"], ["--quiet"]):
        assert "Working" not in cli("devices", *options).stderr


def test_what_takes_long_is_said_once(cli, monkeypatch):
    sentence = "Waiting for a compiler of this test."

    def slow():
        with notices.told_if_slow(logging.getLogger("tvmflow.test"), sentence):
            time.sleep(0.05)
        return []

    monkeypatch.setattr("tvmflow.runtime.devices.list_devices", slow)
    assert sentence not in cli("devices").stderr
    monkeypatch.setattr(notices, "PATIENCE_S", 0.0)
    assert cli("devices").stderr.count(sentence) == 1
    assert sentence not in cli("devices").stderr
