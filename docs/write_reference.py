"""Write docs/reference.md, the commands and their options, from the program itself."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import typer

from tvmflow.cli.app import app

PAGE = Path(__file__).with_name("reference.md")
HEAD = """# Commands

What `tvmflow COMMAND --help` says, on one page: `python docs/write_reference.py` writes it. Lists
of options leave out `--help` and those that [every command](#options-of-every-command) has.
"""
#: The panel of options that every command has.
COMMON = "Common options"


def reference() -> str:
    """Return the page."""
    program = typer.main.get_command(app)
    found = list(commands("tvmflow", program))
    by_name = {one.name: one for _, command in found for one in command.params if is_common(one)}
    parts = [HEAD]
    parts += [f"- [`{words}`](#{words.replace(' ', '-')}) {summary(one)}" for words, one in found]
    parts += ["\n## Options of every command\n", *table(by_name.values())]
    parts += ["\nOf the program itself:\n", *table(p for p in program.params if not is_common(p))]
    shown: set[str] = set()
    for words, command in found:
        parts += ["", *section(words, command, shown)]
    return "\n".join(parts) + "\n"


def commands(words: str, command: Any) -> Iterator[tuple[str, Any]]:
    """Yield the commands below one, with the words that call them."""
    for name, one in getattr(command, "commands", {}).items():
        if getattr(one, "commands", None):
            yield from commands(f"{words} {name}", one)
        else:
            yield f"{words} {name}", one


def is_common(parameter: Any) -> bool:
    """Whether every command has this option."""
    return getattr(parameter, "rich_help_panel", None) == COMMON


def section(words: str, command: Any, shown: set[str]) -> Iterator[str]:
    """Yield the lines about one command; examples that several have, with the first of them."""
    own = [one for one in command.params if not is_common(one) and not one.hidden]
    arguments = [one for one in own if one.param_type_name == "argument"]
    usage = " ".join(a.metavar if a.required else f"[{a.metavar}]" for a in arguments)
    options = [one for one in own if one not in arguments]
    yield f"## {words}\n"
    yield f"    {words} {'[OPTIONS] ' if options else ''}{usage}".rstrip() + "\n"
    yield (command.help or "").replace("\f", "").strip()
    if own:
        yield from ["", *table(own)]
    if command.epilog and command.epilog not in shown:
        shown.add(command.epilog)
        yield "\n```\n" + plain(command.epilog) + "\n```"


def plain(examples: str) -> str:
    """Return the text below a command's options without Rich's markup."""
    text = re.sub(r"\[/?bold\]", "", examples).replace("\\[", "[")
    return text.strip("\n").removeprefix("Examples\n")


def summary(command: Any) -> str:
    """Return the first sentence of a command's text, on one line."""
    return " ".join((command.help or "").partition("\n\n")[0].split())


def table(parameters: Iterable[Any]) -> Iterator[str]:
    """Yield rows of arguments and options."""
    yield "| | |\n|---|---|"
    for one in parameters:
        names = ", ".join([*one.opts, *one.secondary_opts])
        if one.param_type_name == "argument":
            names = one.metavar
        elif not one.is_flag:
            names += f" {one.metavar or 'N'}"
        notes = [" ".join((one.help or "").split())]
        if one.required:
            notes.append("Required.")
        elif one.default not in (None, "", (), []) and one.show_default and not one.is_flag:
            notes.append(f"Default: `{one.default}`.")
        if one.envvar:
            notes.append(f"Also from `{one.envvar}`.")
        cells = (f"`{names}`", " ".join(notes))
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    PAGE.write_text(reference(), encoding="utf-8")
