"""Elements that are accessed one by one, in loops, unrolled and by neighbours, and as vectors."""

from __future__ import annotations

import analysis_kernels as kernels
import pytest
from support.simulated import simulate
from tvm.script import tirx as T

from tvmflow.devices.target import resolve
from tvmflow.explain.analysis import findings, vector_width

ADRENO = resolve("opencl", "adreno")


LOOPS = {"serial": T.serial, "unrolled": T.unroll, "vector": T.vectorized}


def copied(kind, count=4):
    """Each of 1024 items copies some neighbours, in a loop of a kind."""
    return kernels.copied(1024 * count, count, LOOPS[kind])


@T.prim_func(s_tir=True)
def one_each(a: T.Buffer((4096,), "float32"), b: T.Buffer((4096,), "float32")):
    for group in T.thread_binding(64, thread="blockIdx.x"):
        for item in T.thread_binding(64, thread="threadIdx.x"):
            b[group * 64 + item] = a[group * 64 + item]


@T.prim_func(s_tir=True)
def columns(a: T.Buffer((4096,), "float32"), b: T.Buffer((64,), "float32")):
    """Sums whose iterations read 200 elements apart, and whose work-items read 3 apart."""
    for item in T.thread_binding(64, thread="threadIdx.x"):
        b[item] = 0.0
        for k in T.serial(20):
            b[item] = b[item] + a[k * 200 + item * 3]


def read_of(function, device="adreno"):
    found = vector_width(function, resolve("opencl", device))
    (access,) = (v for v in found if v.buffer == "a")
    return access


@pytest.mark.parametrize(
    ("kind", "bytes_", "possible", "neighbours", "instructions"),
    [
        ("serial", 4, 16, "loop", 4096),
        ("unrolled", 4, 16, "unrolled", 4096),
        ("vector", 16, 16, "none", 1024),
    ],
)
def test_loops(kind, bytes_, possible, neighbours, instructions):
    read = read_of(copied(kind))
    assert (read.bytes, read.possible_bytes, read.neighbours) == (bytes_, possible, neighbours)
    assert read.instructions == instructions


def test_lengths_that_are_no_power_of_two():
    assert read_of(copied("serial", 6)).possible_bytes == 8
    assert read_of(copied("serial", 3)).possible_bytes == 4
    assert read_of(copied("unrolled", 3)).possible_bytes == 8


def test_narrow_vectors():
    read = read_of(copied("vector", 2))
    assert (read.bytes, read.possible_bytes, read.neighbours) == (8, 16, "items")


def test_the_device_has_the_limit():
    assert read_of(copied("serial", 16)).possible_bytes == 16
    assert read_of(copied("serial", 16), "cpu").possible_bytes == 64


def test_items_side_by_side():
    read = read_of(one_each)
    assert (read.bytes, read.possible_bytes, read.neighbours) == (4, 16, "items")


def test_elements_far_from_each_other():
    read = read_of(columns)
    assert (read.bytes, read.possible_bytes, read.neighbours) == (4, 4, "none")


def test_findings():
    read, write = (f for f in findings(copied("serial"), ADRENO) if f.kind == "vector-width")
    # 3072 instructions, of waves of 64.
    assert read.cost == write.cost == {"cycles": 48.0}
    assert read.share == 3072 / 8192
    assert "4,096 instructions where 1,024 would do" in read.sentence
    assert not [f for f in findings(copied("vector"), ADRENO) if f.kind == "vector-width"]
    assert {f.access for f in findings(columns, ADRENO) if f.kind == "vector-width"} == {
        "b[threadIdx_x]"
    }


@pytest.mark.oclgrind
@pytest.mark.parametrize("kind", ["serial", "unrolled", "vector"])
def test_counts_are_those_of_a_simulator(kind, tmp_path):
    read = read_of(copied(kind))
    counts = simulate(copied(kind), ADRENO, tmp_path)
    assert counts["load global"] == read.instructions
