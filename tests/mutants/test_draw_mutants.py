"""The rule draws edits of code, which can be applied and parsed."""

from __future__ import annotations

import ast

import draw_mutants
import pytest

PYTHON = '''"""Where a < b and c + d are text."""
def f(a, b):
    # a < b
    if not a and (b) < len(a) or b[0] == 1:
        return a + (b // 2), "x < y"
    return a if a not in b else a is b
'''
C = """// a < b
#if X > 1
static int f(int a, int b) {
  return a < b && a + b > 1 ? a[0] : 2;  // and a < b
}
puts("a < b");
"""


def changed(text, edits):
    return sorted(text[:at] + new + text[at + length :] for at, length, new in edits)


def test_edits_of_python():
    found = changed(PYTHON, draw_mutants.edits_of_python(PYTHON))
    lines = [line for text in found for line in text.splitlines() if line not in PYTHON]
    assert sorted(lines) == sorted([
        "    if a and (b) < len(a) or b[0] == 1:",
        "    if not a and (b) < len(a) and b[0] == 1:",
        "    if not a and (b) < len(a) or b[0] != 1:",
        "    if not a and (b) < len(a) or b[1] == 1:",
        "    if not a and (b) <= len(a) or b[0] == 1:",
        "    if not a or (b) < len(a) or b[0] == 1:",
        "        return a + (b * 2), \"x < y\"",
        "        return a - (b // 2), \"x < y\"",
    ])  # fmt: skip
    for text in found:
        ast.parse(text)


def test_edits_of_c():
    found = changed(C, draw_mutants.edits_of_c(C))
    lines = [line for text in found for line in text.splitlines() if line not in C]
    assert sorted(lines) == sorted([
        "  return a < b && a + b >= 1 ? a[0] : 2;  // and a < b",
        "  return a < b && a + b > 1 ? a[1] : 2;  // and a < b",
        "  return a < b && a - b > 1 ? a[0] : 2;  // and a < b",
        "  return a < b || a + b > 1 ? a[0] : 2;  // and a < b",
        "  return a <= b && a + b > 1 ? a[0] : 2;  // and a < b",
    ])  # fmt: skip


@pytest.mark.parametrize("seed", [1, 2])
def test_what_is_drawn_can_be_applied(seed):
    drawn = draw_mutants.draw(seed, 12)
    assert len({mutant.file for mutant in drawn}) == 12
    for mutant in drawn:
        text = (draw_mutants.ROOT / mutant.file).read_text(encoding="utf-8")
        assert mutant.applied(text) != text
        assert all((draw_mutants.ROOT / test).exists() for test in mutant.tests)
        if mutant.file.endswith(".py"):
            ast.parse(mutant.applied(text))
    assert [m.name for m in draw_mutants.draw(seed, 3)] == [m.name for m in drawn[:3]]
