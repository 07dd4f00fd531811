"""A profile survives being JSON; what is none is refused."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from support.profiles import synthetic_profile

from tvmflow.errors import ArtifactError
from tvmflow.explain.profiling.reading import from_json, read_profile
from tvmflow.explain.profiling.record import BOUNDS, DERIVED, FINDING_KINDS, FORMAT
from tvmflow.runtime.timing import Spread


def test_json_and_back_is_the_same_profile():
    profile = synthetic_profile(kernels=7)
    text = json.dumps(profile.to_json(), allow_nan=False)
    assert from_json(json.loads(text)) == profile
    assert {kernel.bound for kernel in profile.kernels} <= {*BOUNDS, None}
    assert {finding.kind for finding in profile.findings} <= set(FINDING_KINDS)


def test_a_profile_without_ceilings_and_counts_is_one_too():
    profile = replace(synthetic_profile(kernels=2), ceilings=None)
    assert from_json(json.loads(json.dumps(profile.to_json()))) == profile


def test_what_notebooks_show():
    profile = synthetic_profile(kernels=40)
    assert repr(profile).startswith(f"<Profile of {profile.module.name} on {profile.device.name}: ")
    assert len(repr(profile)) < 160
    text = profile._repr_html_()
    assert text.count("<tr>") == 41
    slowest = max(profile.kernels, key=lambda kernel: kernel.median_us)
    row = text.split("<tr>")[2]
    assert f"<td>{slowest.name}</td><td>{slowest.median_us:.1f}</td>" in row
    empty = replace(profile, kernels=())
    assert empty._repr_html_().count("<tr>") == 1


def test_a_file_is_read(tmp_path):
    profile = synthetic_profile(kernels=3)
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(profile.to_json()), encoding="utf-8")
    assert read_profile(path) == profile


def at_a_clock(clock, *launches):
    """A profile of launches from one time to another, in µs, in calls of 10 ms."""
    made = synthetic_profile(len(launches))
    kernels = [
        replace(kernel, clock=clock, start_us=begin, median_us=end - begin)
        for kernel, (begin, end) in zip(made.kernels, launches, strict=True)
    ]
    return replace(made, kernels=tuple(kernels), whole=Spread(10.0, 9.0, 12.0))


@pytest.mark.parametrize(("clock", "host_ms"), [("device", 3.5), ("host", 5.0)])
def test_a_queue_has_kernels_and_gaps(clock, host_ms):
    """On a queue of the device gaps are none of the host's time, around calls they are."""
    profile = at_a_clock(clock, (100, 2100), (3100, 5600), (6100, 6600))
    assert (profile.kernels_ms, profile.queue_ms, profile.between_ms) == (5.0, 6.5, 1.5)
    assert profile.host_ms == pytest.approx(host_ms)


def test_no_part_of_a_call_is_negative():
    # Runs that are measured may take longer than calls do.
    long = at_a_clock("device", (0, 8000), (8000, 16_000))
    assert (long.between_ms, long.host_ms) == (0.0, 0.0)
    none = at_a_clock("device")
    assert (none.kernels_ms, none.queue_ms, none.between_ms, none.host_ms) == (0, 0, 0, 10.0)


def test_what_follows_from_the_rest_is_in_json_and_not_read():
    profile = at_a_clock("device", (0, 1000), (2000, 3000))
    content = profile.to_json()
    assert [content[name] for name in DERIVED] == [2.0, 3.0, 1.0, 7.0]
    for name in DERIVED:
        assert from_json({**content, name: 99.0}) == profile
        content.pop(name)
    assert from_json(content) == profile


CHANGES = [
    (lambda content: content.update(format=FORMAT + 1), "format 2"),
    (lambda content: content.pop("kernels"), "kernels is missing"),
    (lambda content: content["whole"].pop("p90_ms"), "whole.p90_ms is missing"),
    (lambda content: content["kernels"][0].update(colour="red"), r"kernels\[0\].colour is unknown"),
    (lambda content: content["kernels"][1].update(median_us="12"), r"\[1\].median_us is '12'"),
    (lambda content: content["kernels"][1].update(median_us=None), r"\[1\].median_us is 'None'"),
    (lambda content: content["kernels"][0].update(nodes="Conv"), r"\[0\].nodes is 'Conv'"),
    (lambda content: content["kernels"][0].update(flops=True), r"\[0\].flops is 'True'"),
    (lambda content: content["whole"].update(median_ms=float("nan")), "whole.median_ms is 'nan'"),
    (lambda content: content["whole"].update(median_ms=float("inf")), "whole.median_ms is 'inf'"),
    (lambda content: content.update(findings=[7]), r"findings\[0\] is '7'"),
    (lambda content: content.update(tir={"f": 1}), "tir.f is '1'"),
    (lambda content: content.update(ceilings=[]), r"ceilings is '\[\]'"),
]


@pytest.mark.parametrize(("change", "reason"), CHANGES)
def test_what_is_no_profile_is_refused(tmp_path, change, reason):
    content = synthetic_profile(kernels=2).to_json()
    change(content)
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(ArtifactError, match=reason):
        read_profile(path)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it is no JSON"),
        (b"[1, 2]", "it has no format"),
        (b"{}", "it has no format"),
        (b"null", "it has no format"),
        (b"\x7fELF\xff", "it is no JSON"),
        (b"[" * 100_000, "it is nested too deeply"),
    ],
)
def test_other_files_are_refused(tmp_path, content, reason):
    path = tmp_path / "profile.json"
    path.write_bytes(content)
    with pytest.raises(ArtifactError, match=f"a profile was expected, but .*{reason}"):
        read_profile(path)
    with pytest.raises(ArtifactError, match="No such file"):
        read_profile(tmp_path / "none.json")
