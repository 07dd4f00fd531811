"""The page of a lab: its facts of each step, and the tiles that it draws."""

from __future__ import annotations

from html import unescape
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from tvmflow.explain.lab import run_lab
from tvmflow.explain.lab_page import levels_of, page_text, tiles_svg, write_page
from tvmflow.schedules.lab import scheduled


class _Nesting(HTMLParser):
    """Parser that checks that elements end in the reverse order of their beginnings."""

    def __init__(self):
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag, attrs):
        # Elements inside a rectangle end with it; the others here have no end tag.
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def tiles(step, **options):
    moving, elsewhere, summing = levels_of(scheduled("matmul", step, **options))
    assert elsewhere == ()
    return [(level.extent, level.whole, level.tiles[:2]) for level in moving], summing


def test_tiles_are_those_of_the_loops():
    moving, summing = tiles("blocked", size=384, block=8)
    assert moving[:3] == [
        # There are columns of 4 vectors, blocks of 8 tiles, tiles of 6 rows; then the registers.
        (6, (384, 384), ((0, 0, 384, 64), (0, 64, 384, 64))),
        (8, (384, 64), ((0, 0, 48, 64), (48, 0, 48, 64))),
        (8, (48, 64), ((0, 0, 6, 64), (6, 0, 6, 64))),
    ]
    assert summing == ("k_0: serial, 2 iterations", "k_1: serial, 48 iterations",
                       "k_2: unrolled, 4 iterations")  # fmt: skip


def test_the_tiles_of_a_group_are_its_items():
    moving, _ = tiles("parallel", size=64, target="cuda")
    assert [extent for extent, *_ in moving] == [2, 2, 8, 8, 4, 4]


def test_pictures_are_of_maps_and_not_of_channels():
    moving, elsewhere, summing = levels_of(scheduled("conv3x3", "registers", size=16))
    # Tiles of 8 columns, of each pair of the four blocks of 16 channels, are one loop.
    assert [(level.extent, level.whole) for level in moving] == [
        (64, (16, 16)), (8, (1, 8)),
    ]  # fmt: skip
    assert [text.split(": ")[1] for text in elsewhere] == [
        "unrolled, 2 iterations", "vectorized, 16 iterations",
    ]  # fmt: skip
    assert [int(text.split()[-2]) for text in summing] == [4, 3, 3, 16]
    # As there are few items, two share a sum.
    options = {"size": 9, "target": "opencl", "device": "adreno"}
    moving, *_ = levels_of(scheduled("conv3x3", "registers", **options))
    assert moving[0].whole == (9, 9)
    assert moving[-1].tiles[0][2:] == (1, 1)


@pytest.mark.usefixtures("known_ceilings")
@pytest.mark.parametrize("name", ["matmul", "softmax", "batch_sum", "conv3x3"])
def test_a_page_has_each_step(name, tmp_path):
    steps = ["naive", "parallel"]
    result = run_lab(name, size=7, steps=steps, seconds=1e-3)
    write_page(tmp_path / "lab.html", result)
    page = (tmp_path / "lab.html").read_text()
    parser = _Nesting()
    parser.feed(page)
    assert parser.open == []
    sections = page.split("<section ")[1:]
    assert len(sections) == len(result.steps)
    for step, section in zip(result.steps, sections, strict=True):
        text = unescape(section)
        assert text.startswith(f'id="{step.step}"')
        for content in (step.summary, step.removes, *(f.sentence for f in step.found)):
            assert content in text
        assert "<svg" in section
        assert "T.sblock" in text
        assert "candidate" in text.split("Generated code")[1]


def test_a_picture_is_xml_with_a_rectangle_for_each_tile():
    moving, *_ = levels_of(scheduled("matmul", "blocked", size=384, block=8))
    picture = ElementTree.fromstring(tiles_svg(moving[0]))
    rectangles = picture.findall("{http://www.w3.org/2000/svg}rect")
    assert len(rectangles) == 6
    assert rectangles[0].get("class") == "first"


@pytest.mark.usefixtures("known_ceilings")
def test_pages_without_findings_say_so():
    result = run_lab("add", size=37, steps=["parallel"], seconds=1e-3)
    assert ("Nothing is found." in page_text(result)) == (not result.steps[0].found)


@pytest.mark.usefixtures("known_ceilings")
def test_a_page_of_other_blocks_has_steps_without_them_too():
    result = run_lab("matmul", size=37, steps=["naive", "blocked"], block=3, seconds=1e-3)
    page = page_text(result)
    assert [f'id="{step}"' in page for step in ("naive", "blocked")] == [True, True]
    # With 7 tiles of 6 rows, blocks of 2 leave fewer empty tiles than blocks of 3.
    assert "4 tiles of 12 × 48 in 48 × 48" in page
    assert "2 tiles of 6 × 48 in 12 × 48" in page
