"""Accesses that are side by side, strided, misaligned, and depend on data."""

from __future__ import annotations

import numpy as np
import pytest
from analysis_kernels import column_major, gathered, row_major, strided
from support.simulated import addresses, simulate
from tvm.script import tirx as T

from tvmflow.devices.target import resolve
from tvmflow.explain.analysis import coalescing, findings

ADRENO = resolve("opencl", "adreno")
ROWS, COLUMNS = row_major(4096), column_major(64, 64)
STRIDED, GATHERED = strided(4096, 4), gathered(4096)


@T.prim_func(s_tir=True)
def uniform(a: T.Buffer((64,), "float32"), b: T.Buffer((4096,), "float32")):
    for group in T.thread_binding(64, thread="blockIdx.x"):
        for item in T.thread_binding(64, thread="threadIdx.x"):
            b[group * 64 + item] = a[group]


@T.prim_func(s_tir=True)
def vectors(a: T.Buffer((4096,), "float32"), b: T.Buffer((4096,), "float32")):
    for group in T.thread_binding(16, thread="blockIdx.x"):
        for item in T.thread_binding(64, thread="threadIdx.x"):
            for lane in T.vectorized(4):
                b[group * 256 + item * 4 + lane] = a[group * 256 + item * 4 + lane] * T.float32(2)


@T.prim_func(s_tir=True)
def apart(a: T.Buffer((16384,), "float32"), b: T.Buffer((4096,), "float32")):
    """Vectors whose lanes are read 1024 elements apart."""
    for group in T.thread_binding(16, thread="blockIdx.x"):
        for item in T.thread_binding(64, thread="threadIdx.x"):
            for lane in T.vectorized(4):
                b[group * 256 + item * 4 + lane] = a[lane * 1024 + group * 64 + item]


@T.prim_func(s_tir=True)
def window(a: T.Buffer((30, 50), "float32"), b: T.Buffer((30, 50), "float32")):
    """Sums of up to nine neighbours, in groups that reach beyond the picture."""
    for group_y in T.thread_binding(8, thread="blockIdx.y"):
        for group_x in T.thread_binding(4, thread="blockIdx.x"):
            for y in T.thread_binding(4, thread="threadIdx.y"):
                for x in T.thread_binding(13, thread="threadIdx.x"):
                    if group_y * 4 + y < 30 and group_x * 13 + x < 50:
                        b[group_y * 4 + y, group_x * 13 + x] = 0.0
                        for i, j in T.grid(3, 3):
                            b[group_y * 4 + y, group_x * 13 + x] = b[
                                group_y * 4 + y, group_x * 13 + x
                            ] + T.if_then_else(
                                group_y * 4 + y + i > 0
                                and group_y * 4 + y + i <= 30
                                and group_x * 13 + x + j > 0
                                and group_x * 13 + x + j <= 50,
                                a[group_y * 4 + y + i - 1, group_x * 13 + x + j - 1],
                                T.float32(0),
                            )


def window_by_hand(wave: int, line: int) -> tuple[int, int]:
    """Count the picture's reads and the cache lines that they touch, item by item."""
    reads = lines = 0
    for group_y, group_x, i, j in np.ndindex(8, 4, 3, 3):
        for first in range(0, 52, wave):
            places = set()
            for item in range(first, min(first + wave, 52)):
                y, x = group_y * 4 + item // 13, group_x * 13 + item % 13
                row, column = y + i - 1, x + j - 1
                if y < 30 and x < 50 and 0 <= row < 30 and 0 <= column < 50:
                    reads += 1
                    places.add((row * 50 + column) * 4 // line)
            lines += len(places)
    return reads, lines


def read_of(function, device="adreno", buffer="a"):
    """Return the only read of a buffer."""
    found = coalescing(function, resolve("opencl", device))
    (access,) = (a for a in found if a.buffer == buffer and not a.is_store)
    return access


def test_side_by_side():
    access = read_of(ROWS)
    assert (access.stride, access.instructions, access.bytes) == (1, 4096, 16384)
    assert (access.transactions, access.efficiency) == (256, 1.0)
    assert ROWS.script().splitlines()[access.line - 1].strip().startswith("b[group * 64 + item] =")


def test_a_line_for_each_item():
    access = read_of(COLUMNS)
    assert (access.stride, access.transactions) == (64, 4096)
    assert (access.fetched_bytes, access.efficiency) == (4096 * 64, 1 / 16)


@pytest.mark.parametrize(("device", "lines"), [("adreno", 1024), ("mali", 1024), ("nvidia", 2048)])
def test_every_fourth_element(device, lines):
    access = read_of(STRIDED, device)
    assert (access.stride, access.transactions, access.efficiency) == (4, lines, 0.25)


@T.prim_func(s_tir=True)
def square(a: T.Buffer((64, 256), "float32"), b: T.Buffer((64, 64), "float32")):
    """Groups of 8 x 8 items that read every fourth element of eight rows."""
    for by in T.thread_binding(8, thread="blockIdx.y"):
        for bx in T.thread_binding(8, thread="blockIdx.x"):
            for y in T.thread_binding(8, thread="threadIdx.y"):
                for x in T.thread_binding(8, thread="threadIdx.x"):
                    b[by * 8 + y, bx * 8 + x] = a[by * 8 + y, bx * 32 + x * 4]


def test_neighbours_along_two_axes():
    access = read_of(square)
    assert (access.stride, access.strides) == (None, {"threadIdx.x": 4, "threadIdx.y": 256})
    # 8 numbers of each of 8 rows, in two lines a row.
    assert (access.transactions, access.efficiency) == (64 * 16, 0.25)
    read, write = findings_of(square)
    assert "4 elements apart along threadIdx.x, 256 elements apart along threadIdx.y" in (
        read.sentence
    )
    assert write.access.startswith("b[")


def test_one_element_for_all_items():
    access = read_of(uniform)
    assert (access.stride, access.transactions, access.efficiency) == (0, 64, 1.0)


def test_places_from_memory_are_a_line_each():
    access = read_of(GATHERED)
    assert (access.stride, access.transactions) == (None, 4096)
    assert read_of(GATHERED, buffer="at").efficiency == 1.0


def test_vectors():
    access = read_of(vectors)
    assert (access.stride, access.instructions, access.transactions) == (4, 1024, 256)
    access = read_of(apart)
    assert (access.stride, access.instructions, access.transactions) == (1, 4096, 256)


@pytest.mark.parametrize(("device", "wave", "line"), [("adreno", 64, 64), ("nvidia", 32, 32)])
def test_windows_over_the_edge(device, wave, line):
    access = read_of(window, device)
    assert (access.instructions, access.transactions) == window_by_hand(wave, line)


def test_better_kernels_fetch_less():
    kernels = (ROWS, STRIDED, COLUMNS)
    fetched = [read_of(f).fetched_bytes / read_of(f).bytes for f in kernels]
    assert fetched == sorted(fetched) == [1, 4, 16]


def test_findings_name_what_to_change():
    (finding,) = findings_of(COLUMNS)
    assert (finding.kind, finding.kernel) == ("coalescing", "down_kernel")
    assert finding.access == "a[threadIdx_x * 64 + blockIdx_x]"
    assert finding.cost == {"bytes": 4096 * 64 - 16384}
    # The share is relative to the bytes that both accesses fetch.
    assert finding.share == pytest.approx((4096 * 64 - 16384) / (4096 * 64 + 16384))
    assert "64 elements apart" in finding.sentence
    assert "threadIdx.x" in finding.remedy
    assert not findings_of(ROWS)
    assert not findings_of(uniform)


def findings_of(function):
    return [f for f in findings(function, ADRENO) if f.kind == "coalescing"]


@pytest.mark.oclgrind
@pytest.mark.parametrize(
    "function", [ROWS, COLUMNS, STRIDED, uniform, GATHERED, vectors, apart, window]
)
def test_counts_are_those_of_a_simulator(function, tmp_path):
    accesses = coalescing(function, ADRENO)
    counts = simulate(function, ADRENO, tmp_path)
    for is_store, name in (
        (False, "load global"),
        (True, "store global"),
    ):
        predicted = sum(a.instructions for a in accesses if a.is_store == is_store)
        assert predicted == counts[name]
    assert sum(a.bytes for a in accesses if not a.is_store) == counts["load global bytes"]


def lines_of(events, lanes, wave=64, line=64):
    """Count the lines of ``a`` that waves access, from the order of each item's accesses.

    Items are at the same instruction after as many accesses to ``b``, and to ``a`` since then.
    """
    lines = set()
    for (group, item), seen in events.items():
        clock = (0, 0)
        for name, element in seen:
            clock = (clock[0] + 1, 0) if name == "b" else (clock[0], clock[1] + 1)
            if name == "a":
                ends = element * 4 // line, ((element + lanes) * 4 - 1) // line
                lines |= {(group, item // wave, clock, end) for end in ends}
    return len(lines)


@pytest.mark.oclgrind
@pytest.mark.parametrize("wave_and_line", [("adreno", 64, 64), ("nvidia", 32, 32)], ids=str)
@pytest.mark.parametrize(
    ("function", "lanes"),
    [(ROWS, 1), (COLUMNS, 1), (STRIDED, 1), (uniform, 1), (vectors, 4), (apart, 1), (window, 1)],
)
def test_lines_are_those_of_a_simulators_addresses(function, lanes, wave_and_line, tmp_path):
    device, wave, line = wave_and_line
    target = resolve("opencl", device)
    events = addresses(function, target, tmp_path)
    (access,) = (a for a in coalescing(function, target) if a.buffer == "a")
    assert access.transactions == lines_of(events, lanes, wave, line)
    count = sum(name == "a" for seen in events.values() for name, _ in seen)
    assert access.instructions == count


def test_targets_without_items_have_no_accesses():
    assert coalescing(ROWS, resolve("llvm")) == []
