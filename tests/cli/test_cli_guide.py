"""The guide to custom operators says what is so: its code is run, its commands, too."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from support import pages

from tvmflow.ir import operators


def test_the_guide(cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Blocks that begin with a file's name are that file; a command's message may follow it."""
    monkeypatch.setattr(operators, "REGISTERED", {})
    names: dict[str, object] = {}
    ran = []
    found = pages.blocks("docs/custom-operators.md")
    for block, after in pairwise([*found, pages.Block("", 0, "", "")]):
        if block.language == "python" and block.file:
            with (tmp_path / block.file).open("a") as mine:
                mine.write(block.code)
        elif block.language == "python":
            exec(compile(block.code, str(block), "exec"), names)
        elif block.language == "sh":
            message = after.code if after.language == "" else ""
            for command in pages.calls(block):
                if message:  # as in a process that knows no operators
                    monkeypatch.setattr(operators, "REGISTERED", {})
                result = cli(*command)
                assert result.status == (2 if message else 0), result.stderr
                assert " ".join(message.split()) in " ".join(result.stderr.split())
        ran.append(block.language)
    assert ran.count("python") > 8
    assert ran.count("sh") == 2
