"""Findings on too few independent sums, on sums kept in memory, and on loops that use one core."""

from __future__ import annotations

import pytest
from support.loops_for_cpus import LLVM, found, kinds, lab, product, seconds
from tvm.script import tirx as T

from tvmflow.explain.analysis import accumulators, loop_nests


def tiled(rows, vectors, dtype="float32", depth=1024):
    """Return a function with ``rows`` x ``vectors`` vectors of sums; its inputs fit a cache."""
    lanes = 16 * vectors

    @T.prim_func(s_tir=True)
    def tile(
        a: T.Buffer((64, rows), dtype),
        b: T.Buffer((64, lanes), dtype),
        c: T.Buffer((rows, lanes), dtype),
    ):
        total = T.alloc_buffer((rows, lanes), dtype, scope="local")
        for i in T.unroll(rows):
            for v in T.unroll(vectors):
                for j in T.vectorized(16):
                    total[i, v * 16 + j] = T.cast(0, dtype)
        for k in T.serial(depth):
            for i in T.unroll(rows):
                for v in T.unroll(vectors):
                    for j in T.vectorized(16):
                        total[i, v * 16 + j] = (
                            total[i, v * 16 + j] + a[k % 64, i] * b[k % 64, v * 16 + j]
                        )
        for i in T.unroll(rows):
            for v in T.unroll(vectors):
                for j in T.vectorized(16):
                    c[i, v * 16 + j] = total[i, v * 16 + j]

    return tile


@T.prim_func(s_tir=True)
def windows(a: T.Buffer((4096 + 8,), "float32"), c: T.Buffer((4096,), "float32")):
    """Sums of nine elements, so short that a core starts the next sum before one is complete."""
    for i in T.serial(4096):
        c[i] = T.float32(0)
        for k in T.serial(9):
            c[i] = c[i] + a[i + k]


def only(function):
    (one,) = accumulators(function, LLVM)
    return one


@pytest.mark.parametrize(("rows", "vectors"), [(1, 1), (2, 1), (2, 2), (4, 2), (4, 4)])
def test_sums_in_flight(rows, vectors):
    one = only(tiled(rows, vectors))
    count = rows * vectors
    assert (one.loop, one.in_flight, one.vectors) == ("k", count, count)
    assert (one.length, one.additions, one.in_memory) == (1024, 1024 * count, False)
    # A step of the loop takes at least four cycles, and a core starts two additions per cycle.
    assert (one.cycles, one.least_cycles) == (max(4096, 512 * count), 512 * count)


def test_unrolled_steps_are_a_chain():
    one = only(lab("vectorised"))
    assert (one.in_flight, one.length) == (1, 1024)
    assert one.additions == 1024**3 / 16


def test_more_sums_than_registers():
    one = only(tiled(10, 4))
    assert (one.vectors, one.in_memory) == (40, True)
    assert "more than there are registers" in found(tiled(10, 4), "accumulators").sentence


def test_sums_that_an_inner_loop_goes_through():
    one = only(product("ikj"))
    assert (one.in_memory, one.length, one.loop) == (True, 512, "j")
    assert "loads its sum from c" in found(product("ikj"), "accumulators").sentence
    assert "registers" in found(product("ikj"), "accumulators").remedy


def test_short_sums_and_whole_numbers_do_not_wait():
    assert accumulators(windows, LLVM) == []
    assert accumulators(tiled(1, 1, "int32"), LLVM) == []


def test_findings():
    finding = found(tiled(2, 1), "accumulators")
    assert finding.cost == {"cycles": 4096 - 1024}
    assert "adds to 2 sums of total in turn" in finding.sentence
    for function in (tiled(4, 2), tiled(4, 4), windows):
        assert found(function, "accumulators") is None


def test_more_sums_take_less_time_each():
    tiles = [(1, 1), (2, 1), (4, 2)]
    functions = [tiled(*tile, depth=1 << 17) for tile in tiles]
    predicted = [only(f).cycles / only(f).additions for f in functions]
    assert predicted == [4, 2, 0.5]
    measured = [seconds(f) / only(f).additions for f in functions]
    assert measured[0] > 1.3 * measured[1] > 1.3**2 * measured[2], measured


def test_loops_on_one_core():
    (nest,) = loop_nests(product("ijk"), LLVM)
    assert (nest.loop, nest.executions, nest.parts) == ("i", 512**3, 1)
    nests = loop_nests(lab("packed"), LLVM)
    assert len(nests) > 1
    assert all(nest.parts > 1 for nest in nests)
    most = max(nests, key=lambda nest: nest.executions)
    assert most.text.startswith("product_")
    assert most.executions >= 1024**3 / 16
    finding = found(product("ijk"), "parallel")
    assert (finding.access, finding.share) == ("for i", 1.0)
    assert "outermost loop i parallel" in finding.remedy


def test_little_work_is_done_by_one_core():
    assert "parallel" not in kinds(tiled(2, 2))
