"""The part of a machine that other programs take, from counters that were made up."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from tvmflow.runtime import load
from tvmflow.runtime.load import CpuTimes, Watch, cpu_times, disturbance, others_share


def test_others_are_what_is_busy_without_this_process():
    begin = CpuTimes(busy=100.0, total=1000.0, own=7.0)
    assert others_share(begin, CpuTimes(106.0, 1020.0, 10.0)) == pytest.approx(3 / 20)
    # The clock of the machine has coarser steps than that of the process.
    assert others_share(begin, CpuTimes(103.0, 1020.0, 10.5)) == 0.0
    assert others_share(begin, CpuTimes(130.0, 1020.0, 7.0)) == 1.0


@pytest.mark.parametrize(
    ("begin", "end"),
    [(None, CpuTimes(1, 2, 0)), (CpuTimes(1, 2, 0), None), (CpuTimes(1, 2, 0), CpuTimes(1, 2, 0))],
)
def test_where_nothing_is_known_nothing_is_said(begin, end):
    assert others_share(begin, end) is None


@pytest.fixture
def stat(monkeypatch, tmp_path):
    """The file of counters, one that may be written, next to the folders of processes."""
    path = tmp_path / "stat"
    monkeypatch.setattr(load, "_STAT", path)
    monkeypatch.setattr(load, "_PROC", tmp_path)
    monkeypatch.setattr(
        load,
        "os",
        SimpleNamespace(
            sysconf={"SC_CLK_TCK": 50}.get,
            times=lambda: os.times_result([1, 2, 4, 8, 99]),
            getpid=lambda: 10,
        ),
    )
    return path


def test_counters_of_linux(stat):
    # user, nice, system, idle, iowait, irq, softirq, steal, guest, guest_nice
    stat.write_text("cpu  100 50 150 1000 500 50 100 200 77 33\ncpu0 1 1 1 1 1 1 1 1 1 1\n")
    # The last of this process's times is the clock's.
    assert cpu_times() == CpuTimes(busy=13.0, total=43.0, own=15.0)


def test_living_descendants_are_no_other_programs(stat, tmp_path):
    stat.write_text("cpu 100 50 150 1000 500 50 100 200 77 33\n")
    # Process, parent, and ticks: its own in user and system, and those of children that ended.
    for process, parent, ticks in (
        (10, 1, "900 90 9 9"), (11, 10, "50 100 0 0"), (12, 11, "100 0 150 50"), (13, 1, "8 8 8 8")
    ):  # fmt: skip
        (tmp_path / str(process)).mkdir()
        text = f"{process} (a (b) c) S {parent} 1 1 0 -1 4194304 1 1 1 1 {ticks} 20 0 1 0\n"
        (tmp_path / str(process) / "stat").write_text(text)
    (tmp_path / "14").mkdir()
    found = cpu_times()
    assert found is not None
    assert found.own == 15.0 + (50 + 100 + 100 + 150 + 50) / 50


@pytest.mark.parametrize(
    "content", ["", "cpu 1 2 3", "cpu a b c d e f g h", "intr 1 2 3 4 5 6 7 8"]
)
def test_other_counters_are_none(stat, content):
    stat.write_text(content)
    assert cpu_times() is None
    stat.unlink()
    assert cpu_times() is None


def test_the_load_at_present_is_that_of_a_wait(monkeypatch):
    times = iter([CpuTimes(100.0, 1000.0, 7.0), CpuTimes(101.0, 1004.0, 7.0)])
    monkeypatch.setattr(load, "cpu_times", lambda: next(times))
    assert load.others_now(0.0) == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("busy", "words"), [(100.3, None), (101.0, "Other programs took 25% of the processors")]
)
def test_a_watch_says_what_others_took_from_a_share_on(monkeypatch, busy, words):
    times = iter([CpuTimes(100.0, 1000.0, 7.0), CpuTimes(busy, 1004.0, 7.0)])
    monkeypatch.setattr(load, "cpu_times", lambda: next(times))
    monkeypatch.setattr(load, "_LEAST_S", 0.0)
    sentence = disturbance(Watch().others_share())
    assert (words is None) == (sentence is None)
    assert (words or "") in (sentence or "")


def test_where_there_are_no_counters_nothing_is_waited_for(monkeypatch):
    monkeypatch.setattr(load, "cpu_times", lambda: None)
    monkeypatch.setattr(load, "_LEAST_S", 1e9)
    assert Watch().others_share() is None
    assert disturbance(None) is None
