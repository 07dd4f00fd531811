"""Which functions of a module are analysed, and what is said of the others."""

from __future__ import annotations

import dataclasses
from dataclasses import replace

import pytest
from support.profiles import synthetic_profile

from tvmflow.devices.target import resolve
from tvmflow.explain import analysis
from tvmflow.explain.analysis import Fusion, report
from tvmflow.explain.analysis.report import launch_findings, missed_fusion_findings
from tvmflow.explain.profiling import record
from tvmflow.module.functions import tir_text
from tvmflow.schedules.lab import scheduled

ADRENO = resolve("opencl", "adreno")
PROFILE = synthetic_profile(kernels=5)
#: A function stands for itself: what an analysis gets is its name.
FUNCTIONS = {kernel.function: kernel.function for kernel in PROFILE.kernels}


@pytest.fixture
def analysed(monkeypatch):
    """Functions in the order in which they are analysed; each has one finding."""
    names = []

    def analyse(function, target, until):
        names.append(function)
        return [next(f for f in PROFILE.findings if f.kernel == f"{function}_kernel")]

    monkeypatch.setattr(report, "findings", analyse)
    return names


def test_findings_of_analyses_and_of_profiles_are_one_class():
    assert analysis.Finding is record.Finding


def test_each_function_is_analysed_once_the_slowest_first(analysed):
    notes = []
    found = launch_findings(FUNCTIONS, [*PROFILE.kernels, *PROFILE.kernels], ADRENO, notes)
    slowest = sorted(PROFILE.kernels, key=lambda kernel: -kernel.median_us)
    assert analysed == [kernel.function for kernel in slowest]
    assert [finding.kernel for finding in found] == [kernel.name for kernel in slowest]
    assert notes == []


def test_analysis_ends_when_its_time_is_over(analysed, monkeypatch):
    """Within a function, whose findings by then are kept."""
    analyse = report.findings
    slowest = sorted(PROFILE.kernels, key=lambda kernel: -kernel.median_us)

    def slow(function, target, until):
        found = analyse(function, target, until)
        if function == slowest[2].function:
            raise analysis.OutOfTimeError(found)
        return found

    monkeypatch.setattr(report, "findings", slow)
    notes = []
    found = launch_findings(FUNCTIONS, PROFILE.kernels, ADRENO, notes, budget_s=25)
    assert len(found) == len(analysed) == 3
    times = [kernel.median_us for kernel in slowest]
    left = f"functions that take {sum(times[2:]) / sum(times):.1%} of the kernels' time"
    assert notes[0].startswith("After 25 s of analysis, ")
    assert left in notes[0]
    assert notes[0].endswith(f"{slowest[2].function} is the first.")


def test_time_ends_in_real_analyses():
    function = scheduled("matmul", "blocked", target="opencl", device="adreno")
    kernels = [dataclasses.replace(PROFILE.kernels[0], function="main")]
    notes = []
    assert launch_findings({"main": function}, kernels, ADRENO, notes, budget_s=0.0) == ()
    assert "100.0% of the kernels' time have no findings" in notes[0]
    notes.clear()
    assert launch_findings({"main": function}, kernels, ADRENO, notes) != ()
    assert notes == []


def test_a_function_that_cannot_be_analysed_is_told(analysed, monkeypatch):
    failing = PROFILE.kernels[2].function
    analyse = report.findings

    def fail(function, target, until):
        if function == failing:
            raise ValueError("no loop has this extent")
        return analyse(function, target, until)

    monkeypatch.setattr(report, "findings", fail)
    notes = []
    assert len(launch_findings(FUNCTIONS, PROFILE.kernels, ADRENO, notes)) == 4
    assert notes[0] == f"{failing} could not be analysed: no loop has this extent"


def test_fusion_that_is_left_is_worth_the_traffic_of_its_reader():
    reader = replace(PROFILE.kernels[1], bytes_read=6000, bytes_written=2000)
    other = replace(reader, name=f"{reader.name}_1")
    writer = PROFILE.kernels[0].function
    # Two of its launches read such a tensor, a third one reads another.
    function = scheduled("matmul", "naive", size=32, target="opencl", device="adreno")
    functions = {reader.function: function}
    pairs = [Fusion(name, writer, reader.function, 4000, 90_000, "", "a") for name in ("a", "b")]
    entries = [dataclasses.asdict(pair) for pair in pairs]
    found = missed_fusion_findings(entries, [PROFILE.kernels[0], *[reader, other] * 3], functions)
    assert [finding.access for finding in found] == ["a", "b"]
    for finding in found:
        assert (finding.kind, finding.kernel) == ("fusion", reader.name)
        assert " a[" in tir_text(function).splitlines()[finding.line - 1]
        assert finding.cost == {"bytes": 4000}
        assert finding.share == pytest.approx(4000 / (3 * 8000))
        assert f"{writer} writes" in finding.sentence
    # It cannot be worth more than the launch that reads it.
    (large,) = missed_fusion_findings(
        [dataclasses.asdict(replace(pairs[0], saved_bytes=16_000))], [reader] * 4, {}
    )
    assert (large.share, large.line) == (1 / 4, 0)
    # Without counts there is the share of the network's traffic.
    (unknown,) = missed_fusion_findings(
        entries[:1], [replace(reader, bytes_read=None, bytes_written=None)], {}
    )
    assert unknown.share == pytest.approx(4000 / 90_000)
    assert missed_fusion_findings(entries, [PROFILE.kernels[0]], {}) == ()
