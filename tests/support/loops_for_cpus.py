"""Matrix products as loops for a CPU, and the findings of an analysis on them."""

from __future__ import annotations

import time

import numpy as np
import tvm
from tvm.script import tirx as T

from tvmflow.devices.target import resolve
from tvmflow.explain.analysis import findings
from tvmflow.schedules.lab import scheduled
from tvmflow.tuning.building import ENTRY, lower

LLVM = resolve("llvm")
LAB = ("naive", "vectorised", "blocked", "parallel", "packed")


def lab(step, size=1024):
    """Return the matrix product of the lab, scheduled up to a step."""
    return scheduled("matmul", step, size=size)


def product(order, size=512):
    """Return a matrix product of three loops, in the order ``ijk`` or ``ikj``."""

    @T.prim_func(s_tir=True)
    def ijk(
        a: T.Buffer((size, size), "float32"),
        b: T.Buffer((size, size), "float32"),
        c: T.Buffer((size, size), "float32"),
    ):
        T.func_attr({"tirx.noalias": True})
        for i, j, k in T.grid(size, size, size):
            c[i, j] = c[i, j] + a[i, k] * b[k, j]

    @T.prim_func(s_tir=True)
    def ikj(
        a: T.Buffer((size, size), "float32"),
        b: T.Buffer((size, size), "float32"),
        c: T.Buffer((size, size), "float32"),
    ):
        T.func_attr({"tirx.noalias": True})
        for i, k, j in T.grid(size, size, size):
            c[i, j] = c[i, j] + a[i, k] * b[k, j]

    return {"ijk": ijk, "ikj": ikj}[order]


def kinds(function, target=LLVM):
    """Return the kinds of a function's findings."""
    return {finding.kind for finding in findings(function, target)}


def found(function, kind, target=LLVM):
    """Return the only finding of a kind, or ``None``."""
    of_kind = [finding for finding in findings(function, target) if finding.kind == kind]
    assert len(of_kind) < 2
    return of_kind[0] if of_kind else None


def seconds(function):
    """Time of a call, the shortest of some."""
    entry = tvm.runtime.Executable(lower(function, LLVM)).jit()[ENTRY]
    random = np.random.default_rng(0)
    shapes = [[int(n) for n in buffer.shape] for buffer in function.params]
    arrays = [tvm.runtime.tensor(random.standard_normal(shape, np.float32)) for shape in shapes]
    times = []
    for _ in range(5):
        started = time.perf_counter()
        entry(*arrays)
        times.append(time.perf_counter() - started)
    return min(times)
