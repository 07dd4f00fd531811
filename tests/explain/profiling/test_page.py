"""The page of a profile in a browser: it is drawn, sorts, filters, links and obeys the keyboard."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass, replace
from functools import partial
from itertools import accumulate

import pytest
from support.profiles import synthetic_profile

from tvmflow.errors import ArtifactError
from tvmflow.explain.profiling.measure import host_finding
from tvmflow.explain.profiling.page.write import page_text, write_page
from tvmflow.runtime.timing import Spread

browser_test = pytest.mark.browser
PROFILE = synthetic_profile(40)


def column(page, number):
    return page.texts(f"#kernels tbody td:nth-child({number})")


def head(number):
    return f"#kernels th:nth-child({number}) button"


@browser_test
def test_everything_is_drawn(show):
    page = show(PROFILE)
    counted = [k for k in PROFILE.kernels if k.intensity]
    assert page.count("#roofline circle") == len(counted) < len(PROFILE.kernels)
    assert page.count("#layers svg rect") == page.count("#layers li") == len(PROFILE.kernels)
    assert page.count("#timeline .mark") == len(PROFILE.kernels)
    assert page.count("#timeline .hit") == len(PROFILE.memory)
    assert page.count("#kernels tbody tr") == len(PROFILE.kernels)
    assert page.count("#findings li") == len(PROFILE.findings)
    assert page.texts("h1") == ["Profile of net <1>"]
    (note,) = page.texts("#roofline .note")
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
def test_caches_are_roofs(show):
    def roofs(profile):
        texts = show(profile).texts("#roofline text.halo")
        return [text for text in texts if text.endswith("GB/s")]

    assert roofs(PROFILE) == ["L1 350 GB/s", "L2 80 GB/s", "copy 20 GB/s", "texture 14 GB/s"]
    without = replace(PROFILE, ceilings=replace(PROFILE.ceilings, caches=()))
    assert roofs(without) == ["copy 20 GB/s", "texture 14 GB/s"]


@browser_test
def test_ceilings_have_a_date_and_a_load(show):
    when = {"date": "2026-01-02T03:04:05+00:00", "others_share": 0.04}
    page = show(replace(PROFILE, ceilings=replace(PROFILE.ceilings, **when)))
    (note,) = page.texts("#roofline .note")
    said = "Measured 2026-01-02 03:04:05 UTC; other programs took 4% of the processors."
    assert said in note
    assert "Measured" not in show(PROFILE).texts("#roofline .note")[0]


@browser_test
def test_what_launches_and_gaps_take(show):
    page = show(PROFILE)
    last = PROFILE.kernels[-1]
    queue_us = last.start_us + last.median_us - PROFILE.kernels[0].start_us
    between = f"{queue_us - 1e3 * PROFILE.kernels_ms:.3g}"
    assert float(between) > 10
    kernels = ".facet:nth-child(2) .note:last-child"
    assert page.texts(kernels) == [f"40 launches, {between} µs between them"]
    sums = accumulate(PROFILE.kernels, lambda us, k: us + k.median_us, initial=0.1)
    packed = (replace(k, start_us=us) for k, us in zip(PROFILE.kernels, sums, strict=False))
    # The host's clock does not tell when a device is idle.
    timed = (replace(kernel, clock="host") for kernel in PROFILE.kernels)
    for without in (packed, timed):
        page = show(replace(PROFILE, kernels=tuple(without)))
        assert page.texts(kernels) == ["40 launches"]
    assert show(synthetic_profile(1)).texts(kernels) == ["1 launch"]


@browser_test
def test_the_table_sorts(show):
    page = show(PROFILE)
    times = [kernel.median_us for kernel in PROFILE.kernels]
    falling = [str(i + 1) for i in sorted(range(40), key=lambda i: -times[i])]
    assert column(page, 1) == falling
    assert page.texts("#kernels [aria-sort=descending]") == ["time, µs"]
    page.click(head(5))
    assert column(page, 1) == falling[::-1]
    page.click(head(2))
    names = page.run(
        "[...document.querySelectorAll('#kernels td:nth-child(2) a')].map(e => e.textContent)"
    )
    assert names[:3] == ["conv2d_1x1_0_kernel", "conv2d_1x1_6_kernel", "conv2d_1x1_12_kernel"]
    assert page.texts("#kernels [aria-sort]") == ["kernel"]
    # Kernels without counts are last in either order.
    for _ in range(2):
        page.click(head(10))
        rates = column(page, 10)
        assert rates.index("–") == 36
        assert len(set(rates[36:])) == 1
    page.click(head(1))
    assert column(page, 1) == [str(number + 1) for number in range(40)]


@browser_test
def test_the_table_filters(show):
    page = show(PROFILE)
    page.click("#kernels input")
    page.write("softmax CLIP<1")
    wanted = [k for k in PROFILE.kernels if k.family == "softmax" and "Clip<1" in k.nodes[1]]
    assert len(column(page, 1)) == len(wanted) > 1
    (said,) = page.texts("#kernels output")
    assert said.startswith(f"{len(wanted)} of 40 launches")
    # Kernels that the filter hides stay hidden when the others are sorted.
    page.click(head(1))
    assert column(page, 1) == [str(PROFILE.kernels.index(kernel) + 1) for kernel in wanted]
    bounds = {kernel.bound for kernel in wanted}
    bound = sorted(bounds - {None})[0]
    page.choose("#kernels select[aria-label=bound]", bound)
    assert set(column(page, 4)) == {bound}
    page.choose("#kernels select[aria-label=family]", "conv2d")
    assert column(page, 1) == []
    assert page.texts("#kernels output")[0].startswith("0 of 40 launches, 0 µs")


@browser_test
def test_a_finding_of_the_whole_call(show):
    profile = replace(PROFILE, whole=Spread(8 * PROFILE.kernels_ms, 1.0, 99.0))
    found = host_finding(profile)
    page = show(replace(profile, findings=(*PROFILE.findings, found)))
    first = "#findings li:first-child"
    assert page.texts(f"{first} .kind") == ["host"]
    assert page.texts(f"{first} .of") == ["the call"]
    assert page.count(f"{first} a") == 0
    (cost,) = page.texts(f"{first} .cost")
    assert "88 % of the call, up to " in cost
    assert page.texts(f"{first} p") == [found.sentence, found.remedy]


@browser_test
def test_a_finding_opens_its_line(show):
    page = show(PROFILE)
    index, finding = next((i, f) for i, f in enumerate(PROFILE.findings) if f.line == 8)
    kernel = PROFILE.kernels[index]
    page.click(f"#findings a[href='#k0.{index}.8']")
    # The texts are unpacked meanwhile.
    page.wait_for("document.querySelector('#kernel[open] pre')")
    assert page.texts("#kernel-name") == [kernel.name]
    lines = PROFILE.tir[kernel.function].splitlines()
    assert page.texts("#kernel .wanted") == [lines[7] + "\n"]
    assert page.texts("#kernel pre") == ["\n".join(lines) + "\n"]
    assert finding.sentence in page.texts("#kernel .finding")[0]
    page.click("#kernel button:nth-of-type(2)")
    assert page.texts("#kernel pre") == [PROFILE.sources[kernel.name] + "\n"]
    page.press("Escape")
    page.wait_for("!document.getElementById('kernel').open && location.hash === ''")


@browser_test
def test_the_way_back_from_a_finding(show):
    page = show(PROFILE)
    page.click("#findings a.of")
    page.wait_for("document.querySelector('#kernel[open]')")
    page.run("history.back()")
    page.wait_for("!document.getElementById('kernel').open && location.hash === ''")
    assert page.run("document.activeElement.matches('#findings a.of')")


@browser_test
@pytest.mark.parametrize("width", [640, 900, 1280])
def test_links_to_sections_show_their_titles(show, width):
    page = show(PROFILE, PROFILE, width=width)
    for number, section in enumerate(("comparison", "roofline", "layers", "timeline"), 1):
        page.click(f"#sections a:nth-child({number})")
        page.wait_for(f"location.hash === '#{section}'")
        title, links = page.run(
            f"[document.querySelector('#{section} h2').getBoundingClientRect().top,"
            "document.getElementById('sections').getBoundingClientRect().bottom]"
        )
        assert links <= title < links + 60


@browser_test
def test_columns_are_sorted_with_the_keyboard(show):
    page = show(PROFILE)
    page.run(f"document.querySelector({json.dumps(head(4))}).focus()")
    page.press("Tab")
    assert page.run("document.activeElement.textContent") == "time, µs"
    # The element with the keyboard's focus has a frame.
    assert page.run("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.press("Enter")
    assert page.texts("#kernels [aria-sort=ascending]") == ["time, µs"]
    fastest = min(range(40), key=lambda i: PROFILE.kernels[i].median_us)
    assert column(page, 1)[0] == str(fastest + 1)


@browser_test
def test_a_finding_may_be_one_of_a_kind(show):
    page = show(PROFILE)
    kinds = [finding.kind for finding in PROFILE.findings]
    # By what each may be worth at most.
    worth = sorted(PROFILE.findings, key=PROFILE.worth_us, reverse=True)
    assert page.texts("#findings .kind") == [finding.kind for finding in worth]
    page.choose("#findings select", "occupancy")
    assert page.texts("#findings .kind") == ["occupancy"] * kinds.count("occupancy")
    first = next(finding for finding in worth if finding.kind == "occupancy")
    assert page.texts("#findings .of")[0] == first.kernel


@browser_test
def test_launches_one_after_the_other(show):
    page = show(PROFILE)
    page.click("#kernels tbody tr td:last-child")
    page.wait_for("document.querySelector('#kernel[open]')")
    (name,) = page.texts("#kernel-name")
    index = [kernel.name for kernel in PROFILE.kernels].index(name)
    assert page.run("document.activeElement.getAttribute('aria-label')") == "Close"
    page.run("document.querySelector('#kernel [aria-label=\"Next launch\"]').focus()")
    for after in (1, 2):
        page.press("Enter")
        page.wait_for(f"location.hash === '#k0.{index + after}'")
        title = json.dumps(PROFILE.kernels[index + after].name)
        page.wait_for(f"document.getElementById('kernel-name').textContent === {title}")
        # The button is another one, and has the focus all the same.
        assert page.run("document.activeElement.getAttribute('aria-label')") == "Next launch"


@browser_test
def test_charts_obey_the_keyboard(show):
    page = show(PROFILE)
    for part in ("roofline", "layers", "timeline"):
        assert page.count(f"#{part} svg [tabindex='0']") == 1
    page.run("document.querySelector('#timeline .mark[tabindex=\"0\"]').focus()")
    page.press("ArrowRight")
    page.press("ArrowRight")
    page.press("ArrowLeft")
    assert page.run("document.activeElement.dataset.kernel") == "0.1"
    assert PROFILE.kernels[1].name in page.texts("#tip")[0]
    page.press("Escape")
    assert page.texts("#tip") == []
    page.press("ArrowRight")
    page.press("ArrowLeft")
    # The same kernel is marked in every drawing.
    assert page.count("#roofline .same") == 1
    assert page.count("#layers a.same") == 1
    # With Alt, arrows go back and forth between pages.
    left_alone = page.run(
        "document.activeElement.dispatchEvent(new KeyboardEvent('keydown',"
        "{key: 'ArrowLeft', altKey: true, bubbles: true, cancelable: true}))"
    )
    assert left_alone
    assert page.run("document.activeElement.dataset.kernel") == "0.1"
    page.press("Enter")
    page.wait_for("document.querySelector('#kernel[open]')")
    assert page.texts("#kernel-name") == [PROFILE.kernels[1].name]


@browser_test
def test_a_bar_marks_its_launch(show):
    page = show(PROFILE)
    page.run("document.querySelector('#layers li a').focus()")
    slowest = max(range(40), key=lambda index: PROFILE.kernels[index].median_us)
    for part in ("#roofline circle", "#timeline rect", "#kernels tr"):
        assert page.count(f"{part}.same") == page.count(f"{part}.same[data-kernel='0.{slowest}']")
        assert page.count(f"{part}.same") == 1
    assert page.texts("#tip")[0].startswith(PROFILE.kernels[slowest].nodes[0])


@browser_test
def test_colours_by_what_holds_back(show):
    page = show(PROFILE)
    assert len(page.texts("#legend li")) == len({k.family for k in PROFILE.kernels})
    page.choose("#colouring", "bound")
    assert page.texts("#legend li") == [
        "bandwidth", "arithmetic", "launch", "latency", "not known"
    ]  # fmt: skip
    colours = {
        (kernel.bound, page.run(f"getComputedStyle(document.querySelector("
         f"'#timeline [data-kernel=\"0.{index}\"]')).getPropertyValue('--colour')"))
        for index, kernel in enumerate(PROFILE.kernels)
    }  # fmt: skip
    assert len(colours) == len({colour for _, colour in colours}) == 5


@browser_test
def test_memory_changes_where_calls_begin(show):
    functions = "aaaabaa"
    launches = [replace(k, function=f) for k, f in zip(PROFILE.kernels, functions, strict=False)]
    steps = [replace(s, function=f) for s, f in zip(PROFILE.memory, "aaba", strict=False)]
    page = show(replace(PROFILE, kernels=tuple(launches), memory=tuple(steps)))
    places = "[...document.querySelectorAll('#timeline {}')].map(e => +e.getAttribute('x'))"
    begins = page.run(places.format(".mark"))
    assert page.run(places.format(".hit")) == pytest.approx(
        [begins[n] for n in (0, 2, 4, 5)], abs=0.1
    )


@browser_test
def test_the_timeline_enlarges(show):
    page = show(PROFILE)
    width = partial(
        page.run, "document.querySelector('#timeline svg').getBoundingClientRect().width"
    )
    before = width()
    page.click("#timeline button[aria-label=Enlarge]")
    assert width() == pytest.approx(2 * before, abs=4)
    page.click("#timeline button:nth-of-type(3)")
    assert width() == before


def with_text(value, text):
    """The same, with a text in place of all others."""
    if is_dataclass(value):
        return replace(
            value, **{f.name: with_text(getattr(value, f.name), text) for f in fields(value)}
        )
    if isinstance(value, dict):
        return {with_text(k, text): with_text(one, text) for k, one in value.items()}
    if isinstance(value, tuple):
        return tuple(with_text(one, text) for one in value)
    return text if isinstance(value, str) else value


@browser_test
@pytest.mark.parametrize("compared", [False, True])
def test_no_text_is_a_script(show, compared):
    text = (
        "</script></title><script>document.title='taken'</script><!--<img src=x onerror=alert(1)>"
        "&quot;\" onfocus=alert(1) autofocus='${data}' javascript:alert(1)"
    )
    profile = with_text(synthetic_profile(3), text)
    page = show(profile, profile if compared else None)
    assert page.run("document.title") == page.texts("h1")[0]
    assert text in page.run("document.title")
    page.click("#findings a.of")
    page.wait_for("document.querySelector('#kernel[open] pre')")
    assert page.texts("#kernel-name") == [text]
    assert page.texts("#kernel pre") == [f"{text}\n"]
    assert page.count("script") == 3
    assert page.count("img, [onerror], [onfocus]") == 0
    links = "[...new Set([...document.links].map(link => link.hash[1] + link.protocol))]"
    assert set(page.run(links)) <= {f"{first}file:" for first in "krltcf"}


def test_files_whose_names_are_no_text(tmp_path):
    # As Python has the name of a file with the byte FF.
    odd = replace(PROFILE.module, path="net\udcff.so", name="net\udcff")
    write_page(tmp_path / "page.html", replace(PROFILE, module=odd))
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert '"path":"net?.so"' in page
    assert "<title>Profile of net?</title>" in page


def test_large_texts_stay_small():
    lines = "\n".join(f"    lv{n}[v_i0, v_i1 + {n * 7}] = T.float32({n})" for n in range(400))
    profile = synthetic_profile(100)
    tir = {name: f"def {name}():\n{lines}" for name in profile.tir}
    profile = replace(profile, tir=tir, sources=tir)
    assert sum(map(len, tir.values())) > 1_500_000
    assert len(page_text(profile).encode()) < 2_000_000


def test_where_no_page_can_be_written(tmp_path):
    with pytest.raises(ArtifactError, match="does not exist"):
        write_page(tmp_path / "none" / "page.html", PROFILE)
    with pytest.raises(ArtifactError, match="it is a folder"):
        write_page(tmp_path, PROFILE)
