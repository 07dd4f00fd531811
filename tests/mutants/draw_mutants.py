"""Draws deliberate bugs by a rule, one in each of some files chosen at random, and runs them.

    python tests/mutants/draw_mutants.py --seed N [--count 40] [--limit SECONDS] [--workers 2]

The catalogue says whether the tests still notice what they once missed; this says what share of
bugs that nobody thought of they notice.  A bug is a comparison with another bound, another
arithmetic operator, an index that is one off, a condition turned round, or two conditions joined
the other way.  The tests of the folder that mirrors the file's run for the limit, those that name
the file's module first.  Prints a table and writes ``benchmarks/results/drawn_mutants.json``.
Survivors are to be read: some change nothing that can be observed.
"""

from __future__ import annotations

import argparse
import ast
import random
import re
import sys
from collections.abc import Iterator

from catalogue import Mutant
from run_mutants import ROOT, arguments, run_all, write_table

sys.path.insert(0, str(ROOT / "benchmarks"))

from common import write_json

#: How operators of Python are written, and what replaces them.
_PYTHON = {
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="), ast.In: ("in", "not in"),
    ast.And: ("and", "or"), ast.Or: ("or", "and"),
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "+"), ast.FloorDiv: ("//", "*"),
}  # fmt: skip
_C = (
    (r" < ", " <= "), (r" <= ", " < "), (r" > ", " >= "), (r" >= ", " > "), (r" == ", " != "),
    (r" && ", " || "), (r" \|\| ", " && "), (r" \+ ", " - "), (r" - ", " + "), (r"\[0\]", "[1]"),
)  # fmt: skip
#: Parts of the product, and the folders of tests that mirror them.
_PARTS = {"tvmflow": "tests", "schedules": "tests/schedules"}
_C_PART, _C_TESTS = "native/standalone", "tests/module/standalone"

#: Offset and length of the text that is replaced, and its replacement.
Edit = tuple[int, int, str]


def edits_of_python(text: str) -> Iterator[Edit]:
    """Find what the rule can change in a Python file."""
    lines = text.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))

    def at(line: int | None, column: int | None) -> int:
        """Return an offset in characters; Python counts columns in bytes."""
        assert line is not None
        assert column is not None
        return starts[line - 1] + len(lines[line - 1].encode()[:column].decode())

    def operator(left: ast.expr, right: ast.expr, kind: type) -> Iterator[Edit]:
        if kind in _PYTHON:
            old, new = _PYTHON[kind]
            start = at(left.end_lineno, left.end_col_offset)
            found = text.find(old, start, at(right.lineno, right.col_offset))
            if found >= 0:
                yield found, len(old), new

    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Compare):
            yield from operator(node.left, node.comparators[0], type(node.ops[0]))
        elif isinstance(node, ast.BinOp):
            yield from operator(node.left, node.right, type(node.op))
        elif isinstance(node, ast.BoolOp):
            yield from operator(node.values[0], node.values[1], type(node.op))
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield at(node.lineno, node.col_offset), len("not "), ""
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            index = node.slice
            if type(index.value) is int:
                start, end = (at(index.lineno, c) for c in (index.col_offset, index.end_col_offset))
                yield start, end - start, str(index.value + 1)


def edits_of_c(text: str) -> Iterator[Edit]:
    """Find what the rule can change in a C file, outside comments and texts."""
    offset = 0
    for line in text.splitlines(keepends=True):
        code = line.partition("//")[0]
        if '"' not in code and not code.startswith("#"):
            for old, new in _C:
                for found in re.finditer(old, code):
                    yield offset + found.start(), len(found[0]), new
        offset += len(line)


def mutant(file: str, text: str, edit: Edit, tests: tuple[str, ...]) -> Mutant:
    """Describe an edit by lines around it that are there once."""
    offset, length, new = edit
    start, end = text.rfind("\n", 0, offset) + 1, text.find("\n", offset + length)
    line = text.count("\n", 0, offset) + 1
    breaks = text[start:end].strip()
    while text.count(text[start:end]) > 1:
        start, end = text.rfind("\n", 0, max(start - 1, 0)) + 1, text.find("\n", end + 1)
    changed = text[start:offset] + new + text[offset + length : end]
    name = f"{file}:{line}: {text[offset : offset + length].strip()} → {new.strip() or 'nothing'}"
    return Mutant(name, file, text[start:end], changed, breaks, tests)


def tests_of(file: str) -> tuple[str, ...]:
    """Return the test files of the folder that mirrors a file's, the nearest ones first.

    Those that are called like the file come first, also of other folders, then those that name it.
    """
    part, _, rest = file.partition("/")
    folder = ROOT / (_C_TESTS if file.startswith(_C_PART) else _PARTS[part])
    for name in rest.split("/")[:-1] if part == "tvmflow" else ():
        folder = folder / name if (folder / name).is_dir() else folder
    stem = file.rpartition("/")[2].partition(".")[0]
    named = re.compile(rf"\b{re.escape(stem)}\b")
    found = {*folder.rglob("test_*.py"), *(ROOT / "tests").rglob(f"test_{stem}.py")}
    counts = {path: len(named.findall(path.read_text(encoding="utf-8"))) for path in found}
    ordered = sorted(found, key=lambda path: (stem not in path.stem, -counts[path], path))
    return tuple(str(path.relative_to(ROOT)) for path in ordered)


def draw(seed: int, count: int) -> list[Mutant]:
    """Draw a bug in each of ``count`` files."""
    choice = random.Random(seed)
    files = [
        *(p for part in _PARTS for p in sorted((ROOT / part).rglob("*.py"))),
        *sorted((ROOT / _C_PART).glob("*.c")),
    ]
    choice.shuffle(files)
    drawn: list[Mutant] = []
    for path in files:
        if len(drawn) == count:
            break
        text = path.read_text(encoding="utf-8")
        edits = list((edits_of_c if path.suffix == ".c" else edits_of_python)(text))
        if edits:
            file = str(path.relative_to(ROOT))
            drawn.append(mutant(file, text, choice.choice(edits), tests_of(file)))
    return drawn


def main() -> None:
    """Draw and run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seed", type=int, required=True, help="another one draws other bugs")
    parser.add_argument("--count", type=int, default=40, help="files (default: 40)")
    parser.add_argument("-k", default="", metavar="TEXT", help="only bugs with this in their name")
    options = arguments(parser)
    # Whole folders: that they pass as they are, the suite shows.
    drawn = [m for m in draw(options.seed, options.count) if re.search(options.k, m.name)]
    verdicts = run_all(drawn, options, check_unchanged=False)
    caught = write_table(verdicts)
    if not options.k:
        facts = {"seed": options.seed, "limit_s": options.limit, "caught": caught}
        write_json("drawn_mutants", {**facts, "mutants": [v.described() for v in verdicts]})


if __name__ == "__main__":
    main()
