"""Device times of kernels, and TVM's timer made of them."""

from __future__ import annotations

import pytest


def kernels(launches):
    return [launch["kernel"] for launch in launches]


def test_profiles_on_every_driver(driver, script):
    result = script("profiled.py", env=driver.env)
    assert kernels(result["outer"]) == ["scale2", "scale3", "scale1"]
    assert kernels(result["inner"]) == ["scale3"]
    assert result["empty"] == []
    assert result["inner"][0]["global"] == [64]
    assert result["inner"][0]["local"] == [16]
    assert all(launch["us"] >= 0 for launch in result["outer"])
    starts = [launch["start_us"] for launch in result["outer"]]
    assert starts[0] == 0
    assert starts == sorted(starts)
    assert "without" in result["unbalanced"]
    assert all(us > 0 for us in result["evaluator_us"])
    assert set(result["during"]) == {"scale2"}


def test_times_come_from_the_events(fake, script):
    result = script("profiled.py", env=fake)
    # Every launch of the fake device takes 2.5 microseconds.
    assert [launch["us"] for launch in result["outer"]] == [2.5, 2.5, 2.5]
    assert result["evaluator_us"] == pytest.approx([2.5, 2.5])
    # One call to warm up, two repeats of five.
    assert len(result["during"]) == 11
