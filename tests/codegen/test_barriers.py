"""Barriers between what one work-item writes to local memory and others read."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest
from support.operators import random, single
from tvm import IRModule, s_tir, tirx
from tvm.ir.transform import Sequential
from tvm.script import tirx as T

import tvmflow
from tvmflow.codegen.barriers import HideSharedReads, ShowSharedReads
from tvmflow.ir.expressions import nodes_in
from tvmflow.ir.rewriter import op_name
from tvmflow.verify.tolerance import OPERATOR, assert_close


def kernel(place):
    """Items of a group of 8 x 2 write to a place of local memory, and read from there."""

    @T.prim_func(s_tir=True)
    def function(a: T.Buffer((16,), "float32"), b: T.Buffer((16,), "float32")):
        T.launch_thread("blockIdx.x", 1)
        x = T.launch_thread("threadIdx.x", 8)
        y = T.launch_thread("threadIdx.y", 2)
        memory = T.alloc_buffer((32,), scope="shared")
        memory[place(x, y)] = a[y * 8 + x]
        b[y * 8 + x] = memory[place(x, y)]

    return function


def barriers(function, *passes):
    passes = [*passes[:1], s_tir.transform.ThreadSync("shared"), *passes[1:]]
    mod = Sequential(passes)(IRModule({"main": function}))
    assert "tvmflow_shared" not in mod.script()
    calls = nodes_in(mod["main"].body, tirx.Evaluate)
    return sum(op_name(call.value) == "tirx.tvm_storage_sync" for call in calls)


PLACES = {
    "row": (lambda x, y: y, 1),
    "pair": (lambda x, y: y * 4 + x // 2, 1),
    "own": (lambda x, y: y * 8 + x, 0),
    "own, apart": (lambda x, y: x * 3 + y, 0),
}


@pytest.mark.parametrize("case", PLACES)
def test_a_barrier_stands_before_reads_of_what_others_wrote(case):
    place, wanted = PLACES[case]
    assert barriers(kernel(place), HideSharedReads, ShowSharedReads) == wanted


def test_tvm_misses_some():
    """If this fails, TVM has learned it, and the passes can go."""
    assert barriers(kernel(PLACES["row"][0])) == barriers(kernel(PLACES["pair"][0])) == 0


@pytest.mark.opencl
@pytest.mark.optimised
@pytest.mark.parametrize("shape", [(1, 8, 197, 16), (3, 197, 8)])
def test_a_softmax_of_neighbouring_rows(shape):
    """Two rows of a group of 32 x 2 items."""
    x = random(shape)
    model = single("Softmax", [shape], axis=-2)
    options = {"target": "opencl", "device": "adreno", "storage": "buffer"}
    with closing(tvmflow.compile(model, **options)) as module:
        got = module(x0=x)["y"]
    e = np.exp(x - x.astype(np.float64).max(-2, keepdims=True))
    assert_close(got, (e / e.sum(-2, keepdims=True)).astype(np.float32), OPERATOR)
