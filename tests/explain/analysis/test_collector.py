"""Vector indices and conditions, loops whose length is data, many groups and none."""

from __future__ import annotations

import tracemalloc

import pytest
from support.simulated import simulate
from tvm.script import tirx as T

from tvmflow.devices.target import resolve
from tvmflow.explain.analysis import coalescing, divergence, findings, registers, vector_width

ADRENO = resolve("opencl", "adreno")


@T.prim_func(s_tir=True)
def thirds(a: T.Buffer((4096,), "float32"), b: T.Buffer((4096,), "float32")):
    """Vectors whose lanes are read from three places in turn."""
    for group in T.thread_binding(16, thread="blockIdx.x"):
        for item in T.thread_binding(64, thread="threadIdx.x"):
            for lane in T.vectorized(4):
                b[group * 256 + item * 4 + lane] = a[
                    (item * 4 + lane) % 3 * 1024 + group * 64 + item
                ]


@T.prim_func(s_tir=True)
def first_half(a: T.Buffer((4096,), "float32"), b: T.Buffer((4096,), "float32")):
    """Both sides of a choice between vectors are computed."""
    for group in T.thread_binding(16, thread="blockIdx.x"):
        for item in T.thread_binding(64, thread="threadIdx.x"):
            for lane in T.vectorized(4):
                b[group * 256 + item * 4 + lane] = T.Select(
                    item * 4 + lane < 130, a[group * 256 + item * 4 + lane], T.float32(0)
                )


@T.prim_func(s_tir=True)
def rows_of_any_length(
    ends: T.Buffer((65,), "int32"), a: T.Buffer((4096,), "float32"), b: T.Buffer((64,), "float32")
):
    for item in T.thread_binding(64, thread="threadIdx.x"):
        b[item] = 0.0
        for k in T.serial(ends[item], ends[item + 1]):
            b[item] = b[item] + a[k]


@T.prim_func(s_tir=True)
def rows_of_up_to_32(
    counts: T.Buffer((64,), "int32"), a: T.Buffer((4096,), "float32"), b: T.Buffer((64,), "float32")
):
    for item in T.thread_binding(64, thread="threadIdx.x"):
        b[item] = 0.0
        stop: T.let[T.int32] = T.max(T.min(counts[item], 32), 0)
        for k in T.serial(stop // 4):
            b[item] = b[item] + a[item * 64 + k]


@T.prim_func(s_tir=True)
def product(
    a: T.Buffer((16384, 16384), "float32"),
    b: T.Buffer((16384, 16384), "float32"),
    c: T.Buffer((16384, 16384), "float32"),
):
    """Multiply matrices with too many groups, steps and items to list in memory."""
    for row in T.thread_binding(16384, thread="blockIdx.y"):
        for group in T.thread_binding(64, thread="blockIdx.x"):
            for item in T.thread_binding(256, thread="threadIdx.x"):
                c[row, group * 256 + item] = 0.0
                for k in T.serial(16384):
                    c[row, group * 256 + item] = (
                        c[row, group * 256 + item] + a[row, k] * b[k, group * 256 + item]
                    )


@T.prim_func(s_tir=True)
def nothing(a: T.Buffer((0, 4), "float32"), b: T.Buffer((0, 4), "float32")):
    for group in T.thread_binding(0, thread="blockIdx.x"):
        for item in T.thread_binding(4, thread="threadIdx.x"):
            b[group, item] = a[group, item] + 1.0


def read_of(function, target=ADRENO, buffer="a"):
    (access,) = (a for a in coalescing(function, target) if a.buffer == buffer and not a.is_store)
    return access


def test_indices_that_are_vectors():
    read = read_of(thirds)
    # Four instructions of a wave, each in three runs of 64 numbers of which a third is read.
    assert read.instructions == 4096
    assert read.transactions == 16 * 4 * 3 * 4
    assert (read.stride, read.strides) == (None, {"threadIdx.x": None})
    assert not [f for f in findings(thirds, ADRENO) if f.kind == "vector-width"]


def test_choices_of_vectors():
    read = read_of(first_half)
    assert (read.instructions, read.efficiency) == (1024, 1.0)
    assert divergence(first_half, ADRENO) == []
    assert all(width.bytes == 16 for width in vector_width(first_half, ADRENO))


@pytest.mark.oclgrind
def test_vectors_are_those_of_a_simulator(tmp_path):
    assert simulate(thirds, ADRENO, tmp_path)["load global"] == read_of(thirds).instructions
    counts = simulate(first_half, ADRENO, tmp_path)
    assert counts["load global"] == read_of(first_half).instructions


def test_loops_whose_length_is_data():
    read = read_of(rows_of_any_length)
    # Counted as if it ran once, with a line for each item.
    assert (read.instructions, read.transactions) == (64, 64)
    assert registers(rows_of_any_length, ADRENO)[0].spilled_bytes == 0
    assert {f.kind for f in findings(rows_of_any_length, ADRENO)} >= {"coalescing"}


def test_loops_whose_length_is_data_within_bounds():
    """Such loops count as often as their bound allows."""
    read = read_of(rows_of_up_to_32)
    assert read.instructions == 64 * 8


@pytest.mark.parametrize("device", ["adreno", "cpu"])
def test_many_groups_take_little_memory(device):
    target = resolve("opencl", device)
    tracemalloc.start()
    try:
        found = findings(product, target)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found
    assert peak < 200 << 20


def test_kernels_without_groups():
    assert coalescing(nothing, ADRENO) == findings(nothing, ADRENO) == []
    assert findings(nothing, resolve("opencl", "cpu")) == []
