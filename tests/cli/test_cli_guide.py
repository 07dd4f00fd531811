"""The guide to custom operators says what is so: its code is run, its commands, too."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tvmflow.ir import operators

GUIDE = Path(__file__).parents[2] / "docs/custom-operators.md"

BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```$(?:\n\n```\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)


def test_the_guide(cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Blocks that begin with a file's name are that file; behind a command may be its message."""
    monkeypatch.setattr(operators, "REGISTERED", {})
    names: dict[str, object] = {}
    ran = []
    for kind, code, message in BLOCK.findall(GUIDE.read_text(encoding="utf-8")):
        if kind == "python" and (file := re.match(r"# (\w+\.py)\n", code)):
            with (tmp_path / file[1]).open("a") as mine:
                mine.write(code)
        elif kind == "python":
            exec(code, names)
        else:
            for command in map(shlex.split, code.splitlines()):
                assert command[0] == "tvmflow"
                if message:  # as in a process that knows no operators
                    monkeypatch.setattr(operators, "REGISTERED", {})
                result = cli(*command[1:])
                assert result.status == (2 if message else 0), result.stderr
                assert " ".join(message.split()) in " ".join(result.stderr.split())
        ran.append(kind)
    assert ran.count("python") > 8
    assert ran.count("sh") == 2
