"""The page of a profile in a browser: it is drawn, sorts, filters, links and obeys the keyboard."""

from __future__ import annotations

import dataclasses
import json
import re
from functools import partial

import pytest
from profiles import synthetic_profile

from tvmflow.errors import ArtifactError
from tvmflow.profiling.page.write import page_text, write_page

browser_test = pytest.mark.browser
PROFILE = synthetic_profile(40)


@pytest.fixture
def show(page, tmp_path):
    """A function that opens the page of a profile and returns the browser's page."""

    def opened(profile=PROFILE, before=None, **how):
        path = tmp_path / "profile.html"
        write_page(path, profile, before)
        page.open(path, **how)
        return page

    return opened


def count(page, selector):
    return page.run(f"document.querySelectorAll({json.dumps(selector)}).length")


def texts(page, selector):
    """What is to be read in elements that are not hidden."""
    return page.run(
        f"[...document.querySelectorAll({json.dumps(selector)})]"
        ".filter(e => e.checkVisibility()).map(e => e.textContent)"
    )


def wait_for(page, condition):
    """Addresses, dialogs and unpacked texts change a moment later."""
    page.run(
        "new Promise(done => { const look = () => "
        f"{condition} ? done() : setTimeout(look, 10); look(); }})"
    )


def column(page, number):
    return texts(page, f"#kernels tbody td:nth-child({number})")


def head(number):
    return f"#kernels th:nth-child({number}) button"


@browser_test
def test_everything_is_drawn(show):
    page = show()
    counted = [k for k in PROFILE.kernels if k.intensity]
    assert count(page, "#roofline circle") == len(counted) < len(PROFILE.kernels)
    assert count(page, "#layers svg rect") == count(page, "#layers li") == len(PROFILE.kernels)
    assert count(page, "#timeline .mark") == len(PROFILE.kernels)
    assert count(page, "#timeline .hit") == len(PROFILE.memory)
    assert count(page, "#kernels tbody tr") == len(PROFILE.kernels)
    assert count(page, "#findings li") == len(PROFILE.findings)
    assert texts(page, "h1") == ["Profile of net <1>"]
    (note,) = texts(page, "#roofline .note")
    assert f"Not shown: {len(PROFILE.kernels) - len(counted)} " in note
    # Areas are times, and fill the drawing but for the gaps.
    areas = page.run(
        "[...document.querySelectorAll('#layers svg rect')].map(r =>"
        "[r.dataset.kernel, (+r.getAttribute('width') + 1) * (+r.getAttribute('height') + 1)])"
    )
    largest = [k for k, _ in sorted(areas, key=lambda pair: -pair[1])[:3]]
    times = sorted(range(40), key=lambda i: -PROFILE.kernels[i].median_us)[:3]
    assert largest == [f"0.{index}" for index in times]


@browser_test
@pytest.mark.parametrize(
    "profile",
    [
        dataclasses.replace(synthetic_profile(3), ceilings=None, memory=(), tir={}, sources={}),
        synthetic_profile(1),
        synthetic_profile(0),
        dataclasses.replace(
            synthetic_profile(4),
            kernels=tuple(
                dataclasses.replace(k, flops=0, gflops=0.0, intensity=0.0, nodes=(), median_us=0.0)
                for k in synthetic_profile(4).kernels
            ),
        ),
        dataclasses.replace(PROFILE, memory=PROFILE.memory[:7]),
    ],
    ids=["nothing known", "one", "none", "nothing computed", "other steps"],
)
def test_what_is_missing_leaves_no_broken_drawing(show, profile):
    page = show(profile)
    broken = page.run(
        "[...document.querySelectorAll('svg, svg *')].flatMap(e => [...e.attributes])"
        ".filter(a => /NaN|undefined|Infinity|null/.test(a.value)).map(a => a.name + a.value)"
    )
    assert broken == []
    negative = "rect[width^='-'], rect[height^='-'], svg[width^='-']"
    assert count(page, negative) == 0
    seen = page.run("document.body.innerText")
    assert not {"NaN", "undefined", "null", "∞"} & set(re.findall(r"\w+|∞", seen))


@browser_test
def test_the_table_sorts(show):
    page = show()
    times = [kernel.median_us for kernel in PROFILE.kernels]
    falling = [str(i + 1) for i in sorted(range(40), key=lambda i: -times[i])]
    assert column(page, 1) == falling
    assert texts(page, "#kernels [aria-sort=descending]") == ["time, µs"]
    page.click(head(5))
    assert column(page, 1) == falling[::-1]
    page.click(head(2))
    names = page.run(
        "[...document.querySelectorAll('#kernels td:nth-child(2) a')].map(e => e.textContent)"
    )
    assert names[:3] == ["conv2d_1x1_0_kernel", "conv2d_1x1_6_kernel", "conv2d_1x1_12_kernel"]
    assert texts(page, "#kernels [aria-sort]") == ["kernel"]
    # What was not counted is last, whichever way it is sorted.
    for _ in range(2):
        page.click(head(10))
        rates = column(page, 10)
        assert rates.index("–") == 36
        assert len(set(rates[36:])) == 1
    page.click(head(1))
    assert column(page, 1) == [str(number + 1) for number in range(40)]


@browser_test
def test_the_table_filters(show):
    page = show()
    page.click("#kernels input")
    page.write("softmax CLIP<1")
    wanted = [k for k in PROFILE.kernels if k.family == "softmax" and "Clip<1" in k.nodes[1]]
    assert len(column(page, 1)) == len(wanted) > 1
    (said,) = texts(page, "#kernels output")
    assert said.startswith(f"{len(wanted)} of 40 launches")
    choose = (
        "(list => { list.value = '%s'; list.dispatchEvent(new Event('change')); })"
        "(document.querySelectorAll('#kernels select')[%d])"
    )
    bounds = {kernel.bound for kernel in wanted}
    bound = sorted(bounds - {None})[0]
    page.run(choose % (bound, 1))
    assert set(column(page, 4)) == {bound}
    page.run(choose % ("conv2d", 0))
    assert column(page, 1) == []


@browser_test
def test_a_finding_opens_its_line(show):
    page = show()
    index, finding = next((i, f) for i, f in enumerate(PROFILE.findings) if f.line == 8)
    kernel = PROFILE.kernels[index]
    page.click(f"#findings a[href='#k0.{index}.8']")
    # The texts are unpacked meanwhile.
    wait_for(page, "document.querySelector('#kernel[open] pre')")
    assert texts(page, "#kernel-name") == [kernel.name]
    lines = PROFILE.tir[kernel.function].splitlines()
    assert texts(page, "#kernel .wanted") == [lines[7] + "\n"]
    assert texts(page, "#kernel pre") == ["\n".join(lines) + "\n"]
    assert finding.sentence in texts(page, "#kernel .finding")[0]
    page.click("#kernel button:nth-of-type(2)")
    assert texts(page, "#kernel pre") == [PROFILE.sources[kernel.name] + "\n"]
    page.press("Escape")
    wait_for(page, "!document.getElementById('kernel').open && location.hash === ''")


@browser_test
def test_charts_obey_the_keyboard(show):
    page = show()
    for part in ("roofline", "layers", "timeline"):
        assert count(page, f"#{part} svg [tabindex='0']") == 1
    page.run("document.querySelector('#timeline .mark[tabindex=\"0\"]').focus()")
    page.press("ArrowRight")
    page.press("ArrowRight")
    page.press("ArrowLeft")
    assert page.run("document.activeElement.dataset.kernel") == "0.1"
    assert PROFILE.kernels[1].name in texts(page, "#tip")[0]
    # The same kernel is marked in every drawing.
    assert count(page, "#roofline .same") == 1
    page.press("Enter")
    wait_for(page, "document.querySelector('#kernel[open]')")
    assert texts(page, "#kernel-name") == [PROFILE.kernels[1].name]


@browser_test
def test_colours_by_what_holds_back(show):
    page = show()
    assert len(texts(page, "#legend li")) == len({k.family for k in PROFILE.kernels})
    page.run("(list => { list.value = 'bound'; list.dispatchEvent(new Event('change')); })"
             "(document.getElementById('colouring'))")  # fmt: skip
    assert texts(page, "#legend li") == [
        "bandwidth", "arithmetic", "launch", "latency", "not counted"
    ]  # fmt: skip
    colours = {
        (kernel.bound, page.run(f"getComputedStyle(document.querySelector("
         f"'#timeline [data-kernel=\"0.{index}\"]')).getPropertyValue('--colour')"))
        for index, kernel in enumerate(PROFILE.kernels)
    }  # fmt: skip
    assert len(colours) == len({colour for _, colour in colours}) == 5


@browser_test
def test_the_timeline_enlarges(show):
    page = show()
    width = partial(
        page.run, "document.querySelector('#timeline svg').getBoundingClientRect().width"
    )
    before = width()
    page.click("#timeline button[aria-label=Enlarge]")
    assert width() == pytest.approx(2 * before, abs=4)
    page.click("#timeline button:nth-of-type(3)")
    assert width() == before


@browser_test
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_is_readable(show, theme):
    page = show(theme=theme)
    colours = page.run(
        "['--ink', '--soft', '--accent', '--paper', '--raised', '--found', '--wanted'].map(name =>"
        "getComputedStyle(document.documentElement).getPropertyValue(name).trim())"
    )

    def light(colour):
        channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    ink, soft, accent, paper, raised, found, wanted = map(light, colours)
    assert (paper > 0.5) == (theme == "light")
    pairs = [(text, ground) for text in (ink, soft, accent) for ground in (paper, raised)]
    # The contrast that WCAG asks of small text.
    for text, ground in [*pairs, (ink, found), (ink, wanted)]:
        assert (max(text, ground) + 0.05) / (min(text, ground) + 0.05) >= 4.5


@browser_test
@pytest.mark.parametrize("compared", [False, True])
def test_narrow_screens_scroll_down_only(show, compared):
    page = show(width=400, before=synthetic_profile(5) if compared else None)
    assert page.run("document.documentElement.scrollWidth") <= 400


@browser_test
def test_two_profiles_side_by_side(show):
    before = synthetic_profile(30, seed=5)
    page = show(before=before)
    assert texts(page, "h1") == ["Profiles of net <1>, compared"]
    old, new = before.whole.median_ms, PROFILE.whole.median_ms
    verdict = f"{new / old:.3g} times as slow" if new > old else f"{old / new:.3g} times as fast"
    assert verdict in texts(page, ".headline")[0]
    assert [count(page, f"#{part} h3") for part in ("roofline", "kernels")] == [2, 2]
    rows = count(page, "#comparison tbody tr")
    assert rows == 40
    times = [
        sorted((kernel.median_us for kernel in side.kernels[:30]), reverse=True)
        for side in (before, PROFILE)
    ]
    page.click("#comparison th:nth-child(4) button")
    largest = float(texts(page, "#comparison td:nth-child(4)")[0].replace(",", ""))
    assert largest == pytest.approx(times[0][0], rel=0.01)
    assert texts(page, "#comparison td:nth-child(4)")[30:] == ["–"] * 10
    (said,) = texts(page, "#comparison output")
    assert said.startswith("40 of 40 layers")
    page.run("(list => { list.value = 'only after'; list.dispatchEvent(new Event('change')); })"
             "(document.querySelector('#comparison select'))")  # fmt: skip
    assert len(texts(page, "#comparison td:nth-child(1)")) == 10
    page.click("#comparison tbody tr:not([hidden]) a")
    wait_for(page, "document.querySelector('#kernel[open]')")
    assert page.run("location.hash.startsWith('#k1.')")


@browser_test
def test_names_are_no_script(show):
    name = "</script><script>document.title='taken'</script><img src=x onerror=alert(1)>${data}"
    kernels = (dataclasses.replace(PROFILE.kernels[0], name=name, nodes=(name,)),)
    module = dataclasses.replace(PROFILE.module, name=name)
    page = show(dataclasses.replace(PROFILE, module=module, kernels=kernels, tir={name: name}))
    assert texts(page, "h1") == [f"Profile of {name}"]
    assert count(page, "img") == 0
    assert page.run("document.title") == f"Profile of {name}"


def test_large_texts_stay_small():
    lines = "\n".join(f"    lv{n}[v_i0, v_i1 + {n * 7}] = T.float32({n})" for n in range(400))
    profile = synthetic_profile(100)
    tir = {name: f"def {name}():\n{lines}" for name in profile.tir}
    profile = dataclasses.replace(profile, tir=tir, sources=tir)
    assert sum(map(len, tir.values())) > 1_500_000
    assert len(page_text(profile).encode()) < 2_000_000


def test_where_no_page_can_be_written(tmp_path):
    with pytest.raises(ArtifactError, match="does not exist"):
        write_page(tmp_path / "none" / "page.html", PROFILE)
    with pytest.raises(ArtifactError, match="it is a folder"):
        write_page(tmp_path, PROFILE)
