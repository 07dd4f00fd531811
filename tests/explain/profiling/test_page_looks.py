"""Looks of a profile's page: missing facts, long names, colours, narrow screens, paper."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from itertools import cycle

import numpy as np
import pytest
from support.profiles import synthetic_profile

from tvmflow.explain.profiling.page.write import page_text
from tvmflow.explain.profiling.record import Ceilings

browser_test = pytest.mark.browser
PROFILE = synthetic_profile(40)

#: Colours of schedule families, and of the bounds of kernels.
FAMILIES = tuple(f"colour{number}" for number in range(9))

#: Linear red, green and blue as seen with each deficiency (Machado, Oliveira, Fernandes 2009).
BLINDNESS = {
    "none": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "red": [[0.1523, 1.0526, -0.2049], [0.1145, 0.7863, 0.0992], [-0.0039, -0.0481, 1.0520]],
    "green": [[0.3673, 0.8606, -0.2280], [0.2801, 0.6725, 0.0474], [-0.0118, 0.0429, 0.9689]],
    "blue": [[1.2555, -0.0767, -0.1788], [-0.0784, 0.9308, 0.1476], [0.0047, 0.6914, 0.3039]],
}


def colours(page, names):
    """Return colours of the style, a row of 0 to 255 each."""
    values = page.run(
        f"{list(names)}.map(name => getComputedStyle(document.documentElement)"
        ".getPropertyValue('--' + name).trim())"
    )
    return np.array([[int(value[at : at + 2], 16) for at in (1, 3, 5)] for value in values])


def linear(colour):
    """Return the light of the channels, from 0 to 1."""
    channels = colour / 255
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def oklab(light):
    """Return colours in Oklab, where distances are perceptual (Ottosson 2020)."""
    cones = light @ np.transpose(
        [[0.41222, 0.53633, 0.05145], [0.21190, 0.68070, 0.10740], [0.08830, 0.28172, 0.62998]]
    )
    return np.cbrt(cones) @ np.transpose(
        [[0.21045, 0.79362, -0.00407], [1.97800, -2.42859, 0.45059], [0.02590, 0.78277, -0.80868]]
    )


def with_kernels(profile, **changes):
    return replace(profile, kernels=tuple(replace(k, **changes) for k in profile.kernels))


def without_numbers():
    fields = cycle(("median_us", "gflops", "start_us", "p10_us", "flops", "roofline_share"))
    values = cycle((math.nan, math.inf, -math.inf, math.nan))
    changed = zip(PROFILE.kernels, fields, values, strict=False)
    kernels = tuple(replace(kernel, **{field: value}) for kernel, field, value in changed)
    findings = tuple(replace(finding, share=math.nan) for finding in PROFILE.findings)
    return replace(PROFILE, kernels=kernels, findings=findings)


MISSING = {
    "nothing known": replace(synthetic_profile(3), ceilings=None, memory=(), tir={}, sources={}),
    "one": synthetic_profile(1),
    "none": synthetic_profile(0),
    "nothing computed": with_kernels(
        synthetic_profile(4), flops=0, gflops=0.0, intensity=0.0, nodes=(), median_us=0.0
    ),
    "other steps": replace(PROFILE, memory=PROFILE.memory[:7]),
    "no texture": replace(PROFILE, ceilings=Ceilings(20.0, 400.0, 6.5)),
    "no arithmetic": replace(PROFILE, ceilings=Ceilings(20.0, 0.0, 6.5)),
    "negative": replace(
        PROFILE,
        ceilings=Ceilings(-20.0, -400.0, 6.5),
        kernels=tuple(replace(k, median_us=-k.median_us) for k in PROFILE.kernels),
        findings=tuple(replace(f, cost={}) for f in PROFILE.findings),
    ),
    "no numbers": without_numbers(),
}


@browser_test
@pytest.mark.parametrize("profile", MISSING.values(), ids=MISSING)
def test_what_is_missing_leaves_no_broken_drawing(show, profile):
    page = show(profile)
    broken = page.run(
        "[...document.querySelectorAll('svg, svg *')].flatMap(e => [...e.attributes])"
        ".filter(a => /NaN|undefined|Infinity|null/.test(a.value)).map(a => a.name + a.value)"
    )
    assert broken == []
    negative = "rect[width^='-'], rect[height^='-'], svg[width^='-']"
    assert page.count(negative) == 0
    seen = page.run("document.body.innerText")
    assert not {"NaN", "undefined", "null", "∞"} & set(re.findall(r"\w+|∞", seen))


@browser_test
@pytest.mark.parametrize("end", [10.0, 99.9, 1000.0])
def test_times_of_the_timeline_are_whole(show, end):
    (kernel,) = synthetic_profile(1).kernels
    kernels = (replace(kernel, start_us=0.0, median_us=end),)
    page = show(replace(synthetic_profile(1), kernels=kernels))
    beyond = page.run(
        "(svg => [...svg.querySelectorAll('text')].filter(text => text.getBBox().x"
        " + text.getBBox().width > svg.clientWidth + 0.5).map(text => text.textContent))"
        "(document.querySelector('#timeline svg'))"
    )
    assert beyond == []


@browser_test
def test_a_network_that_launches_nothing(show):
    page = show(synthetic_profile(0))
    assert page.texts("#timeline .note") == ["No kernel was launched."]
    assert page.count("#timeline svg") == 0
    assert page.texts("figcaption") == ["First call: 903 ms"]


@browser_test
def test_numbers_far_from_one_are_short(show):
    (kernel,) = synthetic_profile(1).kernels
    odd = replace(kernel, intensity=2.5e-9, gflops=3e21, gbps=123456.0)
    page = show(replace(synthetic_profile(1), kernels=(odd,)))
    assert page.texts("#kernels td:nth-child(n + 10):nth-child(-n + 12)") == [
        "3.00e+21", "123,456", "2.50e-9"
    ]  # fmt: skip


@browser_test
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_is_readable(show, theme):
    names = ("ink", "soft", "accent", "paper", "raised", "found", "wanted")
    page = show(PROFILE, theme=theme)
    found = colours(page, names)
    light = dict(zip(names, linear(found) @ [0.2126, 0.7152, 0.0722], strict=True))
    assert (light["paper"] > 0.5) == (theme == "light")
    pairs = [(text, ground) for text in ("ink", "soft", "accent") for ground in ("paper", "raised")]
    # WCAG's contrast for small text.
    for pair in [*pairs, ("ink", "found"), ("ink", "wanted")]:
        low, high = sorted(light[name] for name in pair)
        assert (high + 0.05) / (low + 0.05) >= 4.5, pair
    # Names in tiles, which are tinted.
    tint = page.run("getComputedStyle(document.documentElement).getPropertyValue('--tint')")
    marks = found[3] + float(tint.strip("% ")) / 100 * (colours(page, FAMILIES) - found[3])
    grounds = linear(marks) @ [0.2126, 0.7152, 0.0722]
    high, low = np.maximum(grounds, light["ink"]), np.minimum(grounds, light["ink"])
    assert ((high + 0.05) / (low + 0.05)).min() >= 4.5


@browser_test
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_colours_are_told_apart_by_everyone(show, theme):
    seen = linear(colours(show(PROFILE, theme=theme), FAMILIES))
    for name, simulation in BLINDNESS.items():
        places = oklab(np.clip(seen @ np.transpose(simulation), 0, 1))
        apart = np.linalg.norm(places[:, None] - places, axis=-1)[np.triu_indices(9, 1)]
        # 0.02 is just visible side by side.
        assert apart.min() > 0.09, name


@browser_test
@pytest.mark.parametrize("compared", [False, True])
def test_narrow_screens_scroll_down_only(show, compared):
    page = show(PROFILE, synthetic_profile(5) if compared else None, width=400)
    assert page.run("document.documentElement.scrollWidth") <= 400


@browser_test
def test_what_is_not_known_is_said(show):
    unknown = {"ceilings": None, "memory": (), "tir": {}, "sources": {}, "findings": ()}
    profile = with_kernels(synthetic_profile(3), bound=None, roofline_share=None)
    page = show(replace(profile, **unknown))
    assert "ceilings were not measured" in page.texts("#roofline .note")[0]
    # Operations were counted: the page does not call them missing.
    assert "counted" not in page.texts(".summary")[0]
    hints = page.run("[...document.querySelectorAll('#roofline .mark')].map(m => m.dataset.tip)")
    assert hints
    assert all(hint.endswith("what holds it back is not known") for hint in hints)
    assert "not known" in page.texts("#timeline .note")[0]
    assert page.texts("#findings .note")[0].startswith("None.")
    page.click("#kernels tbody a")
    page.wait_for("document.querySelector('#kernel[open] > div:last-child .note')")
    page.wait_for("!document.getElementById('kernel').textContent.includes('Unpacking')")
    assert "Neither TIR nor source is known." in page.texts("#kernel .note")


@browser_test
@pytest.mark.parametrize("width", [400, 1280])
def test_names_of_any_length_and_script_stay_in_their_places(show, width):
    names = ("层/卷积/一个很长的名字/Conv", "🎉" * 90, "x" * 3000, "a.b.c/" * 30, "", "<i>&quot;'")
    kernels = tuple(
        replace(kernel, name=f"{name}{kernel.name}", nodes=(name, name), family=name)
        for kernel, name in zip(PROFILE.kernels, cycle(names), strict=False)
    )
    page = show(replace(PROFILE, kernels=kernels), width=width)
    assert page.run("document.documentElement.scrollWidth") <= width
    # No text of a drawing is wider than its tile, and no letter is cut.
    too_wide = page.run(
        "[...document.querySelectorAll('svg .inside')].filter(text => {"
        "let mark = text; while (!mark.matches('.mark')) mark = mark.previousElementSibling;"
        "return text.getComputedTextLength() > mark.getBBox().width; }).map(t => t.textContent)"
    )
    assert too_wide == []
    assert page.count("svg .inside") > 3
    assert "\ufffd" not in page.run("document.body.innerText")
    # The hint stays on the screen, however long it is.
    page.run("document.querySelector('#layers .mark').focus()")
    left, right = page.run(
        "(box => [box.left, box.right])(document.getElementById('tip').getBoundingClientRect())"
    )
    assert 0 <= left < right <= width


@browser_test
def test_a_line_is_in_sight_on_a_narrow_screen(show):
    kernel = PROFILE.kernels[0]
    deep = "\n".join(f"{' ' * number}line {number}" for number in range(80))
    page = show(replace(PROFILE, tir={kernel.function: deep}), width=400, height=800)
    page.run("location.hash = 'k0.0.61'")
    page.wait_for("document.querySelector('#kernel .wanted')")
    assert page.texts("#kernel .wanted") == [" " * 60 + "line 60\n"]
    left, top, right, bottom = page.run(
        "(() => { const text = document.querySelector('.wanted').firstChild;"
        "const range = document.createRange(); range.setStart(text, 60); range.setEnd(text, 67);"
        "const box = range.getBoundingClientRect();"
        "return [box.left, box.top, box.right, box.bottom]; })()"
    )
    assert 0 <= left < right <= 400
    assert 0 <= top < bottom <= 800


@browser_test
def test_a_long_name_leaves_room_for_the_rest(show):
    (kernel,) = synthetic_profile(1).kernels
    times = {"median_us": 1234.0, "p10_us": 1200.0, "p90_us": 5678.0}
    kernel = replace(kernel, name="x" * 3000, global_size=(12544, 7), **times)
    page = show(replace(synthetic_profile(1), kernels=(kernel,)), height=600)
    page.run("location.hash = 'k0.0'")
    page.wait_for("document.querySelector('#kernel[open] pre')")
    bottom, dialog = page.run(
        "['.title', '#kernel'].map(e => document.querySelector(e).getBoundingClientRect().bottom)"
    )
    assert bottom < 0.5 * dialog
    facts = page.texts("#kernel dd")
    assert facts[0].startswith("1.23 ms (1.2 ms to 5.68 ms), ")
    assert facts[-1] == "12,544 × 7 in groups of 56 × 1 × 1"


@browser_test
def test_print_has_all_rows_and_no_buttons(show):
    # The width of A4 paper in landscape.
    page = show(PROFILE, width=1030, media="print", theme="dark")
    assert page.run("document.documentElement.scrollWidth") <= 1030
    cut = page.run(
        "['.scroll', '.bars', '.findings'].flatMap(name => [...document.querySelectorAll(name)])"
        ".filter(e => e.scrollHeight > e.clientHeight + 1).map(e => e.className)"
    )
    assert cut == []
    assert page.texts("nav > a, .controls input, .controls button, #colouring") == []
    assert page.texts("#legend li") != []
    light = linear(colours(page, ("ink", "paper"))).sum(axis=1)
    assert light[0] < light[1]


def test_a_thousand_kernels_are_no_large_page():
    assert len(page_text(synthetic_profile(1000)).encode()) < 2_000_000
