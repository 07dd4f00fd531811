"""The page of two profiles: kernels of both, of one only, and other differences."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.profiles import synthetic_profile

browser_test = pytest.mark.browser
PROFILE = synthetic_profile(40)


def notes(page):
    """Return the page's notes on the two profiles."""
    return page.texts("#head > div:first-of-type .notes li")


@browser_test
def test_two_profiles_side_by_side(show):
    before = synthetic_profile(30, seed=5)
    page = show(PROFILE, before)
    assert page.texts("h1") == ["Profiles of net <1>, compared"]
    old, new = before.whole.median_ms, PROFILE.whole.median_ms
    verdict = f"{new / old:.3g} times as slow" if new > old else f"{old / new:.3g} times as fast"
    assert verdict in page.texts(".headline")[0]
    assert [page.count(f"#{part} h3") for part in ("roofline", "kernels")] == [2, 2]
    rows = page.count("#comparison tbody tr")
    assert rows == 40
    times = [
        sorted((kernel.median_us for kernel in side.kernels[:30]), reverse=True)
        for side in (before, PROFILE)
    ]
    page.click("#comparison th:nth-child(4) button")
    largest = float(page.texts("#comparison td:nth-child(4)")[0].replace(",", ""))
    assert largest == pytest.approx(times[0][0], rel=0.01)
    assert page.texts("#comparison td:nth-child(4)")[30:] == ["–"] * 10
    (said,) = page.texts("#comparison output")
    assert said.startswith("40 of 40 layers")
    page.choose("#comparison select", "only after")
    assert len(page.texts("#comparison td:nth-child(1)")) == 10
    page.click("#comparison tbody tr:not([hidden]) a")
    page.wait_for("document.querySelector('#kernel[open]')")
    assert page.run("location.hash.startsWith('#k1.')")


@browser_test
def test_what_is_in_one_only(show):
    page = show(synthetic_profile(8), synthetic_profile(12))
    assert page.texts(".headline") != []
    page.choose("#comparison select", "only before")
    assert page.texts("#comparison td:nth-child(5)") == ["–"] * 4
    names = [kernel.name for kernel in synthetic_profile(12).kernels[8:]]
    assert sorted(page.texts("#comparison td:nth-child(2)")) == sorted(names)
    # The eight kernels are the same, except for their number.
    page.choose("#comparison select", "the same within 5 %")
    assert len(page.texts("#comparison td:nth-child(1)")) == 8
    assert notes(page) == []


@browser_test
def test_a_profile_beside_itself(show):
    page = show(PROFILE, PROFILE)
    assert "the same within 5 %" in page.texts(".headline")[0]
    assert page.texts("#comparison output") == ["40 of 40 layers, as fast"]
    assert page.run(
        "new Set([...document.querySelectorAll('#comparison option')].map(o => o.value)).size"
    ) == 2  # fmt: skip


@browser_test
def test_other_networks_devices_and_targets_are_said(show):
    other = replace(
        PROFILE,
        module=replace(
            PROFILE.module, name="other net", target="llvm", versions={"tvmflow": "0.0.1"}
        ),
        device=replace(PROFILE.device, name="Another GPU"),
        kernels=tuple(
            replace(kernel, nodes=(f"other/{number}",), clock="host")
            for number, kernel in enumerate(PROFILE.kernels)
        ),
    )
    page = show(PROFILE, other)
    assert page.texts("h1") == ["Profiles of other net and net <1>, compared"]
    assert "times" not in page.texts(".headline")[0]
    said = notes(page)
    starts = ("networks: other net", "devices: Another GPU before, A device &", "targets: llvm",
              "clocks of kernels: host before", "versions: tvmflow 0.0.1")  # fmt: skip
    for sentence, start in zip(said, starts, strict=False):
        assert sentence.startswith(f"Different {start}")
    assert said[-1] == "No node or function is in both."
    assert len(said) == len(starts) + 1
    assert page.count("#comparison tbody tr") == 80


@browser_test
def test_both_have_one_scale(show):
    slow = replace(
        PROFILE,
        kernels=tuple(
            replace(kernel, median_us=4 * kernel.median_us, start_us=4 * kernel.start_us)
            for kernel in PROFILE.kernels
        ),
    )
    page = show(PROFILE, slow)
    slowest = max(range(40), key=lambda index: PROFILE.kernels[index].median_us)
    for place in ("#timeline .mark", "#layers .bar"):
        marks = [f"{place}[data-kernel='{side}.{slowest}']" for side in (0, 1)]
        before, after = page.run(
            f"{marks}.map(mark => document.querySelector(mark).getBoundingClientRect().width)"
        )
        # Except for the gap after a mark.
        assert before == pytest.approx(4 * after, abs=2)
