"""Markdown pages: links lead somewhere, and commands and options exist."""

from __future__ import annotations

import re
import sys
from functools import cache
from pathlib import Path, PurePosixPath
from urllib.parse import unquote

import pytest
import typer
from support import pages

from tvmflow.cli.app import app

sys.path.insert(0, str(pages.ROOT / "docs"))

import write_operators
import write_reference
import write_zoo

#: Error of the program's parser: newer versions of typer contain a copy of click.
UsageError = typer.BadParameter.__mro__[1]
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6} +(.*?)\s*$", re.MULTILINE)


def tree_path(path: Path) -> str:
    return str(path.resolve().relative_to(pages.ROOT.resolve()))


def anchors(page: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub names them."""
    found: set[str] = set()
    for heading in HEADING.findall(pages.text_without_code(page)):
        text = LINK.sub(lambda link: link[0][link[0].index("[") + 1 : link[0].index("]")], heading)
        anchor = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        count = sum(re.fullmatch(re.escape(anchor) + r"(-\d+)?", one) is not None for one in found)
        found.add(f"{anchor}-{count}" if count else anchor)
    return found


@pytest.mark.parametrize("page", pages.pages())
def test_links_lead_somewhere(page: str):
    text = re.sub(r"`[^`\n]*`", "", pages.text_without_code(page))
    broken = []
    for target in LINK.findall(text):
        if re.match(r"\w+:", target):
            continue
        name, _, anchor = unquote(target).partition("#")
        path = (pages.ROOT / page).parent / name if name else pages.ROOT / page
        if not path.exists() or (anchor and anchor not in anchors(tree_path(path))):
            broken.append(target)
    assert not broken, f"{page} has links that lead nowhere: {broken}"


@pytest.mark.parametrize("page", pages.pages())
def test_commands_and_their_options_are_there(page: str):
    for block in pages.blocks(page, "", "sh"):
        for words in pages.calls(block):
            try:
                parse([word for word in words if word not in ("...", "…")])
            except UsageError as error:
                pytest.fail(f"{block}: tvmflow {' '.join(words)}: {error.format_message()}")


@pytest.mark.parametrize("page", pages.pages())
def test_targets_and_scripts_are_there(page: str):
    targets = re.findall(r"^([\w-]+):", (pages.ROOT / "Makefile").read_text(), re.MULTILINE)
    for block in pages.blocks(page, "", "sh"):
        for line in block.commands:
            made = re.findall(r"(?:^|&& )(?:\w+=\S+ )*make ([\w-]+)", line)
            assert set(made) <= set(targets), f"{block}: {line}"
            called = re.findall(r"(?:^|&& )(?:\w+=\S+ )*(?:python|sh|bash) ([\w./]+)", line)
            gone = [name for name in called if not (pages.ROOT / name).exists()]
            assert not gone, f"{block}: {line}"


@cache
def program():
    return typer.main.get_command(app)


def parse(words: list[str]) -> None:
    """Raise the program's error for a command that it refuses before it opens files."""
    command = program()
    while (commands := getattr(command, "commands", None)) and words and words[0][0] != "-":
        name, *words = words
        if name not in commands:
            raise UsageError(f"There is no command {name}.")
        command = commands[name]
    context = command.context_class(command)
    values, rest, _ = command.make_parser(context).parse_args(args=words)
    if rest:
        raise UsageError(f"{' '.join(rest)}: too many arguments.")
    for parameter in command.params:
        given = values.get(parameter.name)
        choices = (parameter.metavar or "").split("|")
        if isinstance(given, str) and len(choices) > 1 and given not in choices:
            raise UsageError(f"{given} is none of {', '.join(choices)}.")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["compil", "net.onnx"], "no command"),
        (["compile", "net.onnx", "--targett", "opencl"], "o such option"),
        (["compile", "net.onnx", "another.onnx"], "too many"),
        (["tune", "net.onnx", "--journal"], "equires an argument"),
        (["compile", "net.onnx", "--target", "vulkan"], "none of opencl"),
    ],
)
def test_a_wrong_command_is_found(words: list[str], reason: str):
    with pytest.raises(UsageError) as caught:
        parse(words)
    assert reason in caught.value.format_message()


def test_the_reference_of_commands_is_current():
    assert (pages.ROOT / "docs/reference.md").read_text(encoding="utf-8") == (
        write_reference.reference()
    ), "python docs/write_reference.py writes it anew"


def test_the_page_of_operators_is_current():
    assert (pages.ROOT / "docs/operators.md").read_text(encoding="utf-8") == (
        write_operators.operators()
    ), "python docs/write_operators.py writes it anew"


def test_the_page_of_the_zoo_is_of_its_results():
    assert (pages.ROOT / "docs/zoo.md").read_text(encoding="utf-8") == (write_zoo.zoo()), (
        "python docs/write_zoo.py writes it anew"
    )


def test_the_index_has_every_page():
    index = set(LINK.findall(pages.text_without_code("docs/README.md")))
    there = {PurePosixPath(page).name for page in pages.pages() if page.startswith("docs/")}
    assert there - {"README.md"} <= {link.partition("#")[0] for link in index}
