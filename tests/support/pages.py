"""Code blocks of Markdown pages, as tests run them.

A block of ``sh`` is run, in order with those of ``python``, ``c`` and others whose first line
names a file (``# mine.py``, ``/* main.c */``): such a block is appended to that file.  Blocks
without a language are output, or commands for other machines.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]

_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"(?:#|//|/\*) ([\w.]+\.\w+)(?: \*/)?\n")


@dataclass(frozen=True)
class Block:
    """Code between two fences of a page."""

    page: str
    line: int
    language: str
    code: str

    @property
    def file(self) -> str | None:
        """Return the file that the first line names."""
        return found[1] if (found := _FILE.match(self.code)) else None

    @property
    def commands(self) -> list[str]:
        """Return the lines, with those joined that end in a backslash."""
        return [line for line in self.code.replace("\\\n", " ").splitlines() if line.strip()]

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: str, *languages: str) -> list[Block]:
    """Return a page's blocks in order, all or those of these languages; the page is in the tree."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = [
        Block(page, text.count("\n", 0, match.start()) + 1, match[2], match[3])
        for match in _FENCE.finditer(text)
    ]
    assert text.count("```") == 2 * len(found), f"{page} has a fence without its other end"
    return [block for block in found if not languages or block.language in languages]


def pages() -> list[str]:
    """Return all Markdown pages of the tree."""
    folders = (ROOT, *(ROOT / name for name in ("docs", "examples", "models", "tuning_logs")))
    found = {page for folder in folders[1:] for page in folder.rglob("*.md")}
    return sorted(str(page.relative_to(ROOT)) for page in {*found, *ROOT.glob("*.md")})


def calls(block: Block) -> Iterator[list[str]]:
    """Yield the words of each ``tvmflow`` command in a block, also after a prompt."""
    for line in block.commands:
        if match := re.match(r"\s*(?:\w*\$ +|\w+=\S+ +)?tvmflow +(.*)", line):
            lexer = shlex.shlex(match[1], posix=True, punctuation_chars=True)
            lexer.commenters, lexer.whitespace_split = "#", True
            words = list(lexer)
            ends = [i for i, word in enumerate(words) if set(word) <= set("();<>|&")]
            yield words[: min(ends, default=len(words))]


def text_without_code(page: str) -> str:
    """Return a page without its blocks, with the same number of lines."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return _FENCE.sub(lambda match: "\n" * match[0].count("\n"), text)
