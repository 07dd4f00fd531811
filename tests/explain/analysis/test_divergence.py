"""Conditions on which work-items of a wave agree, and do not, and loops of varying length."""

from __future__ import annotations

import pytest
from support.simulated import simulate
from tvm.script import tirx as T

from tvmflow.devices.target import resolve
from tvmflow.explain.analysis import coalescing, divergence, findings

ADRENO = resolve("opencl", "adreno")


@T.prim_func(s_tir=True)
def even(a: T.Buffer((4096,), "float32"), b: T.Buffer((4096,), "float32")):
    for group in T.thread_binding(32, thread="blockIdx.x"):
        for item in T.thread_binding(128, thread="threadIdx.x"):
            if item % 2 == 0:
                b[group * 128 + item] = a[group * 128 + item]


@T.prim_func(s_tir=True)
def half_of_a_group(a: T.Buffer((4096,), "float32"), b: T.Buffer((4096,), "float32")):
    for group in T.thread_binding(32, thread="blockIdx.x"):
        for item in T.thread_binding(128, thread="threadIdx.x"):
            if item < 64:
                b[group * 128 + item] = a[group * 128 + item]


@T.prim_func(s_tir=True)
def by_group(a: T.Buffer((4096,), "float32"), b: T.Buffer((4096,), "float32")):
    for group in T.thread_binding(32, thread="blockIdx.x"):
        for item in T.thread_binding(128, thread="threadIdx.x"):
            if group % 4 == 0:
                b[group * 128 + item] = a[group * 128 + item]


@T.prim_func(s_tir=True)
def edge(a: T.Buffer((4000,), "float32"), b: T.Buffer((4000,), "float32")):
    for group in T.thread_binding(63, thread="blockIdx.x"):
        for item in T.thread_binding(64, thread="threadIdx.x"):
            if group * 64 + item < 4000:
                b[group * 64 + item] = a[group * 64 + item]


@T.prim_func(s_tir=True)
def two_sides(a: T.Buffer((4096,), "float32"), b: T.Buffer((4096,), "float32")):
    for group in T.thread_binding(64, thread="blockIdx.x"):
        for item in T.thread_binding(64, thread="threadIdx.x"):
            if item < 16:
                b[group * 64 + item] = a[group * 64 + item] * a[item]
            else:
                b[group * 64 + item] = 0.0


@T.prim_func(s_tir=True)
def triangle(a: T.Buffer((4096,), "float32"), b: T.Buffer((4096,), "float32")):
    for group in T.thread_binding(64, thread="blockIdx.x"):
        for item in T.thread_binding(64, thread="threadIdx.x"):
            for k in T.serial(item + 1):
                b[group * 64 + item] = a[k]


@T.prim_func(s_tir=True)
def by_data(a: T.Buffer((4096,), "float32"), b: T.Buffer((4096,), "float32")):
    for group in T.thread_binding(64, thread="blockIdx.x"):
        for item in T.thread_binding(64, thread="threadIdx.x"):
            if a[group * 64 + item] > T.float32(0):
                b[group * 64 + item] = 1.0


def only(function, device="adreno"):
    (found,) = divergence(function, resolve("opencl", device))
    return found


def test_every_other_item_waits():
    found = only(even)
    # Two waves in each of 32 groups; 32 items of each wait for a read and a write.
    assert (found.waves, found.split, found.masked_lanes) == (64, 64, 64 * 32 * 2)
    assert found.masked == 0.5
    assert even.script().splitlines()[found.line - 1].strip().startswith("b[")


def test_whole_waves_agree():
    found = only(half_of_a_group)
    assert (found.waves, found.split, found.masked) == (64, 0, 0.0)
    # The same code on waves of 32: they agree, too.
    assert only(half_of_a_group, "nvidia").masked == 0.0


def test_groups_agree():
    found = only(by_group)
    assert (found.waves, found.split, found.masked) == (64, 0, 0.0)


def test_the_last_group_is_cut():
    found = only(edge)
    # 4000 = 62 * 64 + 32: half of the last wave.
    assert (found.waves, found.split, found.masked_lanes) == (63, 1, 32 * 2)
    assert found.masked == pytest.approx(32 / 4032)


def test_both_sides_run_one_after_the_other():
    found = only(two_sides)
    # 48 items wait for two reads and a write, then 16 for a write.
    assert found.masked_lanes == 64 * (48 * 3 + 16)
    assert found.masked == pytest.approx((48 * 3 + 16) / (64 * 4))
    # Waves of 16 agree.
    assert only(two_sides, "mali").masked == 0.0


def test_loops_take_as_long_as_the_longest():
    found = only(triangle)
    waiting = 64 * sum(63 - item for item in range(64)) * 2
    assert found.masked_lanes == waiting


def test_conditions_on_data_are_unknown():
    found = only(by_data)
    assert found.masked == 0.0


def test_order():
    shares = [only(f).masked for f in (half_of_a_group, edge, even, two_sides)]
    assert shares == sorted(shares)
    assert len(set(shares)) == 4


def test_findings():
    (finding,) = (f for f in findings(even, ADRENO) if f.kind == "divergence")
    # 4096 accesses of items that wait, in waves of 64.
    assert finding.cost == {"cycles": 64.0}
    assert finding.share == 0.5
    assert "64 of 64 waves" in finding.sentence
    for function in (half_of_a_group, by_group, edge):
        assert not [f for f in findings(function, ADRENO) if f.kind == "divergence"]


@pytest.mark.oclgrind
@pytest.mark.parametrize(
    "function", [even, half_of_a_group, by_group, edge, two_sides, triangle, by_data]
)
def test_what_runs_is_what_a_simulator_runs(function, tmp_path):
    """Each item comes to its own side of a condition, and to its own end of a loop."""
    counts = simulate(function, ADRENO, tmp_path)
    accesses = coalescing(function, ADRENO)
    if function is not by_data:  # of zeros: none is positive
        assert counts["store global"] == sum(a.instructions for a in accesses if a.is_store)
    assert counts["load global"] == sum(a.instructions for a in accesses if not a.is_store)


@pytest.mark.oclgrind
@pytest.mark.parametrize("function", [even, edge, triangle])
def test_items_that_do_not_wait_run(function, tmp_path):
    found = only(function)
    counts = simulate(function, ADRENO, tmp_path)
    running = found.masked_lanes / found.masked
    assert counts["store global"] == round(running - found.masked_lanes) / 2
