"""Another engine's times on the page of a profile, and in its record."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from support.profiles import synthetic_profile

from tvmflow.explain.profiling.measure import with_yardsticks
from tvmflow.explain.profiling.reading import from_json
from tvmflow.explain.yardstick.measured import NOTE, Operator

EXACT = Operator("conv2d", 64, 64, 56, 56, window=3)
NEAR = Operator("conv2d", 64, 72, 56, 56, window=3)
UNKNOWN = Operator("conv2d", 64, 64, 7, 7, window=11)


def measured(count=5):
    """Return a profile whose launches 0 to 2 have operators: two known ones, then another."""
    profile = synthetic_profile(count)
    names = [kernel.function for kernel in profile.kernels]
    operators = dict(zip(names, (EXACT, NEAR, UNKNOWN), strict=False))
    return replace(profile, kernels=tuple(with_yardsticks(profile.kernels, operators)))


def test_json_and_back_is_the_same_profile():
    profile = measured()
    assert [kernel.yardstick is not None for kernel in profile.kernels] == [
        *(True, True, False, False, False)
    ]
    text = json.dumps(profile.to_json(), allow_nan=False)
    assert from_json(json.loads(text)) == profile
    assert "TFLite" in text


def test_a_layer_has_all_launches_that_compute_a_part_of_its_node():
    first, *rest = synthetic_profile(4).kernels
    transforms = [replace(each, nodes=(f"conv{n // 3}",)) for n, each in enumerate([first, *rest])]
    found = with_yardsticks(transforms, {transforms[1].function: EXACT})
    assert [each.yardstick is not None for each in found] == [False, True, False, False]
    assert found[1].yardstick.own_us == pytest.approx(sum(k.median_us for k in transforms[:3]))


def test_the_kernels_of_a_function_are_one_layer():
    kernels = [
        replace(each, function="f", nodes=("conv",)) for each in synthetic_profile(3).kernels
    ]
    again = [*kernels, replace(kernels[0], nodes=("other",))]
    found = with_yardsticks(again, {"f": EXACT})
    assert [each.yardstick is not None for each in found] == [True, False, False, True]
    assert found[0].yardstick.own_us == pytest.approx(sum(each.median_us for each in kernels))
    assert found[3].yardstick.own_us == again[3].median_us


@pytest.mark.browser
def test_the_page_has_a_row_for_each_layer(show):
    profile = measured()
    page = show(profile)
    assert page.texts("#yardstick p.note") == [NOTE]
    rows = page.texts("#yardstick tbody tr")
    assert len(rows) == 2
    (near,) = (row for row in rows if "64 → 72" in row)
    assert "conv2d 3×3, 64 → 64, 56×56" in near
    (exact,) = (row for row in rows if row != near)
    assert "the same" in exact
    assert exact.count("GFLOP/s") == 4
    page.run("location.hash = 'k0.1'")
    page.wait_for("document.querySelector('#kernel[open] pre')")
    (text,) = (each for each in page.texts("#kernel dd") if "TFLite" in each)
    assert "16 bits: Adreno 640" in text
    assert text.endswith("(conv2d 3×3, 64 → 72, 56×56; measured: conv2d 3×3, 64 → 64, 56×56)")


@pytest.mark.browser
def test_the_page_fits_narrow_windows(show):
    for width in (500, 1366):
        page = show(measured(), width=width)
        assert page.run("document.documentElement.scrollWidth") <= width


@pytest.mark.browser
def test_a_profile_without_them_has_no_such_section(show):
    page = show(synthetic_profile(3))
    assert page.count("#yardstick") == 0
    page = show(measured(), before=synthetic_profile(3))
    assert page.texts("#yardstick p.note") == ["No layer has such times.", NOTE]
