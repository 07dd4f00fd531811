"""A profile's counters of memory, in a trace."""

from __future__ import annotations

import dataclasses

import pytest
from support.profiles import synthetic_profile

from tvmflow.explain.profiling.record import MemoryStep
from tvmflow.explain.profiling.trace import trace


def begins(launches, steps):
    """Which launch each step of the memory plan begins with; launches are 10 µs apart."""
    made = synthetic_profile(len(launches))
    kernels = [
        dataclasses.replace(kernel, function=function, start_us=10.0 * n, median_us=5.0)
        for n, (kernel, function) in enumerate(zip(made.kernels, launches, strict=True))
    ]
    memory = tuple(MemoryStep(n, function, 100 + n) for n, function in enumerate(steps))
    profile = dataclasses.replace(made, kernels=tuple(kernels), memory=memory)
    counters = [event for event in trace(profile)["traceEvents"] if event["ph"] == "C"]
    assert [event["args"]["bytes"] for event in counters] in ([], [m.live_bytes for m in memory])
    return [event["ts"] / 10 for event in counters]


@pytest.mark.parametrize(
    ("launches", "steps", "expected"),
    [
        ("abc", "abc", [0, 1, 2]),
        # Two kernels in each of its calls, one after the other.
        ("aaaab", "aab", [0, 2, 4]),
        ("aabaac", "abac", [0, 2, 3, 5]),
        # A call without a launch is at the start of the next launch, or at the end of the run.
        ("ab", "axb", [0, 1, 1]),
        ("ab", "abx", [0, 1, 1.5]),
        ("", "x", [0]),
        # Launches that are not those of the plan.
        ("ba", "ab", []),
        ("a", "ab", [0, 0.5]),
    ],
)
def test_memory_changes_where_a_call_begins(launches, steps, expected):
    assert begins(launches, steps) == expected


def test_times_are_microseconds():
    profile = synthetic_profile(3)
    found = trace(profile)
    # Whatever else says a unit, some readers scale the times by.
    assert set(found) == {"traceEvents"}
    slices = [event for event in found["traceEvents"] if event["ph"] == "X" and event["pid"] == 2]
    assert [(e["ts"], e["dur"]) for e in slices] == [
        (kernel.start_us, kernel.median_us) for kernel in profile.kernels
    ]
