"""Conditions of a measurement: heat, throttling, sleep."""

from __future__ import annotations

import time

import pytest

from tvmflow.agent.module import Conditions

COOL = {"temperatures": {"gpu": 31.5, "skin": 30.0}, "throttled": [], "slept_ns": 4_000_000_000}
WARM = {**COOL, "temperatures": {"gpu": 30.0, "skin": 44.0}}


def test_a_cool_and_steady_device_is_not_disturbed():
    found = Conditions(COOL, WARM, slowdown=1.05)
    assert (found.celsius, found.throttled, found.slept) == ((31.5, 44.0), "", "")
    assert Conditions({}, {}, slowdown=1.0).celsius is None


def test_active_cooling_devices_are_named_before_slower_runs():
    found = Conditions({**COOL, "throttled": ["gpu"]}, {**WARM, "throttled": ["cpu"]}, 1.5)
    assert found.throttled == "The device throttles (cpu, gpu)."
    assert "1.50 times as long" in Conditions(COOL, WARM, 1.5).throttled


def test_sleep_is_the_growth_of_the_difference_of_two_clocks():
    woken = {**WARM, "slept_ns": COOL["slept_ns"] + 2_500_000_000}
    assert "2.5 s" in Conditions(COOL, woken, 1.0).slept


@pytest.mark.opencl
def test_sensors_have_the_time_that_this_machine_slept(local):
    slept_s = time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(time.CLOCK_MONOTONIC)
    assert local.sensors()["slept_ns"] * 1e-9 == pytest.approx(slept_s, abs=0.01)
