"""Loops that go along rows and down columns, and how much of each line of memory they use."""

from __future__ import annotations

import pytest
from support.loops_for_cpus import LLVM, found, lab, product, seconds
from tvm.script import tirx as T

from tvmflow.explain.analysis import cache_lines


def summed(step, rows=256, columns=256):
    """Every ``step``-th element of each row, one sum for each."""
    width = columns * step

    @T.prim_func(s_tir=True)
    def sums(a: T.Buffer((rows, width), "float32"), c: T.Buffer((rows,), "float32")):
        for i, k in T.grid(rows, columns):
            c[i] = c[i] + a[i, k * step]

    return sums


@T.prim_func(s_tir=True)
def gathered(
    at: T.Buffer((4096,), "int32"), a: T.Buffer((4096,), "float32"), c: T.Buffer((4096,), "float32")
):
    for i in T.serial(4096):
        c[i] = a[at[i]]


def use_of(function, buffer):
    (use,) = (u for u in cache_lines(function, LLVM) if u.buffer == buffer and not u.is_store)
    return use


@pytest.mark.parametrize("step", [1, 2, 4, 16, 32])
def test_strides(step):
    use = use_of(summed(step), "a")
    assert (use.loop, use.stride_bytes, use.is_run) == ("k", 4 * step, step == 1)
    # Rows are of 256 * step numbers, 16 of them in a line.
    assert use.lines == pytest.approx(256 * 256 * min(step, 16) / 16)
    assert use.efficiency == pytest.approx(1 / min(step, 16))
    assert use.times == pytest.approx(1.0 if step <= 16 else 16 / step)


def test_columns_of_a_matrix_that_no_cache_holds():
    use = use_of(product("ijk", 1024), "b")
    assert (use.loop, use.stride_bytes, use.efficiency) == ("k", 4096, 1 / 16)
    # Each line comes for each of its 16 numbers, and for each row of the result: 480 at a time.
    assert use.times == pytest.approx(1024 * 16, rel=0.01)
    assert use.pages == use.lines


def test_columns_that_the_first_cache_holds():
    """The lines are still there when the next column is read."""
    assert use_of(product("ijk", 64), "b").efficiency == 1.0
    assert found(product("ijk", 64), "cache-lines") is None


def test_rows():
    assert [use_of(product("ikj"), name).efficiency for name in "bc"] == [1.0, 1.0]
    assert found(product("ikj"), "cache-lines") is None


def test_places_from_memory_are_left_out():
    assert cache_lines(gathered, LLVM) == []


def test_vectors_of_long_rows_are_a_page_each():
    use = use_of(lab("vectorised"), "b")
    assert use.efficiency == 1.0
    assert use.window_pages > 64
    # A row is a page.
    assert use.pages == use.lines
    assert use_of(lab("packed"), "b_global").window_pages < 64


def test_findings():
    function = product("ijk", 1024)
    finding = found(function, "cache-lines")
    assert finding.access == "b[k * 1024 + j]"
    use = use_of(function, "b")
    assert finding.cost == {"bytes": pytest.approx(use.lines * 60)}
    assert "4,096 bytes apart: of each line of 64 bytes 4 are read" in finding.sentence
    assert finding.line > 0
    pages = found(lab("vectorised"), "pages")
    assert pages.access.startswith("b[")
    assert "panels" in pages.remedy
    assert found(lab("packed"), "pages") is None


def test_fewer_lines_take_less_time():
    functions = [product(order) for order in ("ikj", "ijk")]
    lines = [sum(use.lines for use in cache_lines(f, LLVM)) for f in functions]
    times = [seconds(f) for f in functions]
    assert lines[0] * 4 < lines[1]
    assert times[0] * 1.5 < times[1], times
