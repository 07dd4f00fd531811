"""The check of prose: what it reports, and what it leaves alone."""

from __future__ import annotations

import importlib.util

import pytest
from support import pages

_spec = importlib.util.spec_from_file_location("check_prose", pages.ROOT / "docs/check_prose.py")
check_prose = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(check_prose)


def reports(source: str) -> list[tuple[int, str]]:
    return [(line, fault.split(":")[0]) for line, fault in check_prose.faults(source)]


@pytest.mark.parametrize("opening", ["Of", "Where", "What", "Who", "By", "So", "As well"])
def test_openings_without_a_subject_are_reported(opening: str):
    source = f'"""{opening} the rest."""\n\ndef f():\n    """{opening} it."""\n'
    assert [line for line, _ in reports(source)] == [1, 4]


def test_a_comment_of_a_field_counts_by_its_first_line():
    source = "#: Constraints of all families,\n#: What follows is no opening.\nx = 1\n"
    assert reports(source) == []
    assert reports("#: Of register tiles.\nx = 1\n") == [(1, "opens with “Of”")]


def test_idioms_are_found_across_lines():
    source = '"""Return a block that is kept\n    apart."""\n'
    assert reports(source) == [(1, "“kept apart”")]


def test_words_that_begin_alike_are_no_openings():
    source = '"""Offsets of frames."""\n\nclass A:\n    """Bytes per texel."""\n'
    assert reports(source) == []


@pytest.mark.parametrize(
    ("subject", "faults"),
    [
        ("graph: fuse the mean of rows", 0),
        ("docs, tests: name the tree", 0),
        ("Loops on llvm take what nobody has taken", 1),
        ("graph: Fuse the mean", 1),
        ("schedules: " + "pad " * 20, 1),
    ],
)
def test_subjects(subject: str, faults: int):
    assert len(list(check_prose.subject_faults(subject))) == faults
