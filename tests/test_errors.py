"""Messages use Python's syntax where they are raised, and flags where a command prints them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import tvmflow
from tvmflow.cli.options import with_flags
from tvmflow.errors import CompileError

PACKAGE = Path(tvmflow.__file__).parent
#: Remedies with flags are commands, or arguments of other programs.
COMMANDS = re.compile(r"python -m pip .*|tvmflow (farm )?\w+( [^-\s]\S*)?( --[\w-]+( \w\S*)?)*")


@pytest.mark.parametrize(
    ("message", "python", "flags"),
    [
        ("Use `target=opencl`.", 'Use `target="opencl"`.', "Use --target opencl."),
        ("`embed_limit_bytes=200000000`", None, "--embed-limit 200"),
        ("`bounds=a=b=7`", '`bounds={"a=b": 7}`', "--bound a=b=7"),
        ("`shapes=x=1..8,3,?`", '`shapes={"x": ("1..8", 3, "?")}`', "--shape x=1..8,3,?"),
        ("`shapes=x=5`", '`shapes={"x": (5,)}`', "--shape x=5"),
        ("`at=x=8x9,7x6`", '`at={"x": [(8, 9), (7, 6)]}`', "--at x=8x9,7x6"),
        ("`at=x=224`", '`at={"x": [(224,)]}`', "--at x=224"),
        ("`results=y=softmax+topk:5`", '`results={"y": "softmax+topk:5"}`', None),
        ("`ops=mine.py`", '`tvmflow.ops.load("mine.py")`', "--ops mine.py"),
        ("Leave `cuda_graph` out.", "Leave `cuda_graph` out.", "Leave --cuda-graph out."),
        ("Use `format=standalone`.", 'Use `format="standalone"`.', "Use --standalone."),
        ("Allow it with `overwrite=True`.", None, "Allow it with --overwrite."),
        ("no `option` of `ours=1`", None, "no `option` of `ours=1`"),
    ],
)
def test_options_are_keywords_in_python_and_flags_in_commands(message, python, flags):
    assert str(CompileError("No.", remedy=message)) == f"No.\nRemedy: {python or message}"
    if flags is not None:
        assert with_flags(message) == flags


def texts(tree: ast.AST) -> Iterator[str]:
    """Yield strings that are no docstrings; a letter replaces values inserted into one."""
    parts = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):
            parts.add(id(node.value))
        elif isinstance(node, ast.JoinedStr):
            parts |= set(map(id, node.values))
            yield "".join(str(getattr(part, "value", "")) if isinstance(part, ast.Constant) else "x"
                          for part in node.values)  # fmt: skip
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and (id(node) not in parts)
        ):
            yield node.value


def test_the_library_writes_no_flags_into_messages():
    """Options are `name` or `name=value` there; both functions above translate them."""
    flag = re.compile(r"[ (`]--[a-z]")
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if path.relative_to(PACKAGE).parts[0] == "cli" or not flag.search(text):
            continue
        for each in texts(ast.parse(text)):
            if "\n" not in each and flag.search(COMMANDS.sub("", each)):
                found.append(f"{path.name}: {each}")  # noqa: PERF401
    # Only commands for other programs have them.
    assert [each.split()[:2] for each in found] == [
        ["transports.py:", "mkdir"],
        ["link.py:", "clang"],
    ]
