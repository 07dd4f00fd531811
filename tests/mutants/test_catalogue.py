"""The list of deliberate bugs fits the tree as it is; `make mutants` runs them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from catalogue import MUTANTS
from run_mutants import Run, judge

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_old_text_occurs_once(mutant):
    text = (ROOT / mutant.file).read_text(encoding="utf-8")
    changed = mutant.applied(text)
    assert changed != text
    if mutant.file.endswith(".py"):
        ast.parse(changed)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_its_tests_exist(mutant):
    for test in mutant.tests:
        file, _, case = test.partition("::")
        name = case.partition("[")[0]
        text = (ROOT / file).read_text(encoding="utf-8")
        assert not name or f"\ndef {name}(" in text


def test_names_are_different():
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


def test_a_text_that_has_changed_is_refused():
    with pytest.raises(ValueError, match="0 times"):
        MUTANTS[0].applied("something else")


@pytest.mark.parametrize(
    ("status", "failed", "message", "caught"),
    [
        (1, "tests/test_a.py::test_b", "AssertionError: assert 1 == 2", True),
        (1, "tests/test_a.py::test_b", "Failed: DID NOT RAISE", True),
        # A test that cannot be set up, and an edit that leaves nothing to test.
        (1, "", "", False),
        (1, "tests/test_a.py::test_b", "ImportError: cannot import name 'a'", False),
        (0, "", "", False),
        (2, "", "", False),
        (4, "", "", False),
        # It crashed the tests.
        (-11, "", "", True),
        # It did not end in time.
        (None, "", "", False),
    ],
)
def test_only_a_test_that_fails_catches(status, failed, message, caught):
    run = Run(status, failed, message, 1.0, 1.0, "")
    assert judge(MUTANTS[0], run, 60.0, 1.0).caught is caught
