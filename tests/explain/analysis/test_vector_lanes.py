"""Statements over numbers and vectors, and which of them compilers make vectors of."""

from __future__ import annotations

import platform
import re

import pytest
from support.loops_for_cpus import LLVM, found, kinds, lab, product
from tvm.script import tirx as T

from tvmflow.explain.analysis import vector_lanes
from tvmflow.tuning.building import lower


@T.prim_func(s_tir=True)
def added(a: T.Buffer((4096,), "float32"), b: T.Buffer((4096,), "float32")):
    T.func_attr({"tirx.noalias": True})
    for i in T.serial(4096):
        b[i] = a[i] + T.float32(1)


@T.prim_func(s_tir=True)
def turned(a: T.Buffer((64, 64), "float32"), b: T.Buffer((64, 64), "float32")):
    """Transposition: the inner loop writes neighbours and reads one row apart."""
    T.func_attr({"tirx.noalias": True})
    for i, j in T.grid(64, 64):
        b[i, j] = a[j, i]


@T.prim_func(s_tir=True)
def counted(a: T.Buffer((64, 4096), "int32"), c: T.Buffer((64,), "int32")):
    """Sums of integers, which may be added in any order."""
    T.func_attr({"tirx.noalias": True})
    for i, k in T.grid(64, 4096):
        c[i] = c[i] + a[i, k]


@T.prim_func(s_tir=True)
def few(a: T.Buffer((4096, 3), "float32"), b: T.Buffer((3, 4096), "float32")):
    for i, j in T.grid(4096, 3):
        b[j, i] = a[i, j]


def short_vectors(apart):
    """Return a copy by vectors of 8 lanes, ``apart`` elements from each other."""

    @T.prim_func(s_tir=True)
    def short(a: T.Buffer((512 * apart,), "float32"), b: T.Buffer((4096,), "float32")):
        for i in T.serial(512):
            for lane in T.vectorized(8):
                b[i * 8 + lane] = a[i * apart + lane] + T.float32(1)

    return short


@T.prim_func(s_tir=True)
def largest_and_sum(a: T.Buffer((64, 512), "float32"), c: T.Buffer((64,), "float32")):
    """Two loops over the same elements."""
    most = T.alloc_buffer((1,), scope="local")
    total = T.alloc_buffer((1,), scope="local")
    for i in T.serial(64):
        most[0] = T.float32(-1000)
        for k in T.serial(512):
            most[0] = T.max(most[0], a[i, k])
        total[0] = T.float32(0)
        for k in T.serial(512):
            total[0] = total[0] + T.exp(a[i, k] - most[0])
        c[i] = total[0]


@T.prim_func(s_tir=True)
def once(a: T.Buffer((1,), "float32"), b: T.Buffer((1,), "float32")):
    b[0] = a[0] + T.float32(1)


def only(function):
    (lanes,) = vector_lanes(function, LLVM)
    return lanes


def test_lanes_and_neighbours():
    one = only(added)
    assert (one.lanes, one.possible, one.executions, one.neighbours) == (1, 16, 4096, "i")


@pytest.mark.parametrize("function", [added, product("ikj"), counted])
def test_llvm_makes_none(function):
    one = only(function)
    assert not one.by_compiler
    assert one.obstacle == "only vectors that are written out are vectors on llvm"


GATHERED = "which a vector gathers one by one"


@pytest.mark.parametrize(
    ("function", "obstacle", "neighbours"),
    [
        (product("ijk"), "all iterations of the innermost loop k add to one number", "j"),
        (
            turned,
            f"iterations of the innermost loop j access a 64 elements apart, {GATHERED}",
            "j",
        ),
        (few, "the innermost loop j has only 3 iterations", "i"),
        (short_vectors(8), "compilers leave vectors in the code as long as they are", "i"),
        (short_vectors(16), "iterations of the innermost loop i access a 16 elements apart", "i"),
    ],
)
def test_obstacles(function, obstacle, neighbours):
    one = only(function)
    assert (one.by_compiler, one.obstacle, one.neighbours) == (False, obstacle, neighbours)


def test_vectors_in_the_code():
    assert {one.lanes for one in vector_lanes(lab("vectorised"), LLVM)} == {16}


def test_findings():
    finding = found(product("ijk"), "vector-width")
    # One of 16 lanes is used.
    assert finding.cost == {"cycles": 512**3 * 15 / 16}
    assert finding.share == 15 / 16
    assert "c is computed 1 number at a time, 134,217,728 times" in finding.sentence
    assert finding.remedy.startswith("Split j, whose iterations write neighbours, by 16")
    assert found(product("ikj"), "vector-width").remedy.startswith("Vectorize j, split by 16")
    assert found(lab("packed"), "vector-width") is None


def test_short_vectors():
    finding = found(short_vectors(8), "vector-width")
    assert finding.share == 0.5
    assert "b is computed 8 numbers at a time, 512 times, in vectors of 16" in finding.sentence
    assert finding.remedy.startswith("Iterations of i write neighbours: make vectors of 16")


def test_lines_are_those_of_the_sums():
    lines = largest_and_sum.script().splitlines()
    for one in vector_lanes(largest_and_sum, LLVM):
        if one.executions == 64 * 512:
            buffer = one.text.split("[")[0]
            assert f"{buffer}[0]" in lines[one.line - 1].split(" = ")[1]


def test_what_runs_once_is_not_worth_a_word():
    assert kinds(once) == set()


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="reads x86's assembly")
@pytest.mark.parametrize("function", [added, product("ikj"), product("ijk"), counted])
def test_the_compiler_does_what_is_expected(function):
    code = lower(function, LLVM).inspect_source("asm")
    _, _, body = code.partition("candidate_compute_:")
    packed = re.search(r"v(add|fmadd\w+|padd)(ps|d)\s.*%[yz]mm", body)
    assert (packed is not None) == only(function).by_compiler
