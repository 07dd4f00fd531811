"""Copies of texels that nothing reads are left out of the source."""

from __future__ import annotations

import re

import pytest
from support.onnx_models import expected, model_of
from support.operators import random
from tvm import IRModule, tirx
from tvm.script import tirx as T
from tvm.target import Target

import tvmflow
from tvmflow.codegen.unread_elements import DropUnreadElements
from tvmflow.ir.expressions import nodes_in
from tvmflow.verify.tolerance import NETWORK, assert_close


def stores(function) -> int:
    """Return the number of stores to private memory that are left."""
    bound = function.with_attr("target", Target("opencl"))
    after = DropUnreadElements(IRModule({"main": bound}))["main"]
    return sum(s.buffer.scope() == "local" for s in nodes_in(after.body, tirx.BufferStore))


def test_elements_that_are_never_read_are_dropped():
    @T.prim_func(s_tir=True)
    def strided(x: T.Buffer((12,), "float32"), y: T.Buffer((2,), "float32")):
        row = T.alloc_buffer((12,), scope="local")
        row[T.Ramp(0, 1, 4)] = x[T.Ramp(0, 1, 4)]
        row[T.Ramp(4, 1, 4)] = x[T.Ramp(4, 1, 4)]
        row[T.Ramp(8, 1, 4)] = x[T.Ramp(8, 1, 4)]
        y[0] = row[3]
        y[1] = row[8]

    assert stores(strided) == 2


def test_elements_at_unknown_indices_are_kept():
    @T.prim_func(s_tir=True)
    def indexed(x: T.Buffer((8,), "float32"), y: T.Buffer((4,), "float32")):
        row = T.alloc_buffer((8,), scope="local")
        row[T.Ramp(0, 1, 4)] = x[T.Ramp(0, 1, 4)]
        row[T.Ramp(4, 1, 4)] = x[T.Ramp(4, 1, 4)]
        for i in range(4):
            y[i] = row[i]

    assert stores(indexed) == 2


def test_calls_with_effects_are_kept():
    @T.prim_func(s_tir=True)
    def counts(y: T.Buffer((1,), "float32")):
        kept = T.alloc_buffer((2,), scope="local")
        kept[0] = T.call_extern("float32", "next")
        kept[1] = T.call_extern("float32", "next")
        y[0] = kept[1]

    assert stores(counts) == 2


@pytest.mark.opencl
def test_texels_between_those_of_a_stride_are_not_read(tmp_path):
    shape = (1, 16, 96, 96)
    weights = {"w": random((32, 16, 1, 1))}
    model = model_of("y = Conv<strides = [2, 2]>(x, w)", {"x": shape}, "y", weights)
    x = random(shape)
    options = {"target": "opencl", "device": "adreno", "storage": "texture", "dump_ir": tmp_path}
    with tvmflow.compile(model, **options) as module:
        assert_close(module(x=x)["y"], expected(model, {"x": x})[0], NETWORK)
    (source,) = tmp_path.glob("*export.0.opencl")
    kernel = next(k for k in source.read_text().split("\n}") if "conv2d_local_ptr[" in k)
    sums = re.search(r"float4 conv2d_local_ptr\[(\d+)\]", kernel)
    inputs = re.findall(r"READ_IMAGEF\(x\w*_ptr, ", kernel)
    # A texel for each pixel of the tile, which has several.
    assert len(inputs) == int(sums[1]) > 1
