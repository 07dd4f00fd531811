"""Times of nested stages."""

from __future__ import annotations

from tvmflow.runtime import stage_times
from tvmflow.runtime.stage_times import StageTimes


def test_inner_stages_stop_the_clock_of_outer_ones(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(stage_times.time, "perf_counter", lambda: now[0])
    times = StageTimes()
    now[0] = 5.0
    with times.stage("outer"):
        now[0] = 6.0
        for _ in range(2):
            with times.stage("inner"):
                now[0] += 10.0
        now[0] += 0.5
        assert times.milliseconds() == {"outer": 1500.0, "inner": 20000.0}
        now[0] += 0.25
    now[0] += 100.0
    assert times.milliseconds() == {"outer": 1750.0, "inner": 20000.0}
