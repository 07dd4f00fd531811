"""Legalisation and fusion: what cannot be turned into loops is named."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from support.first_stages import through
from tvm import relax, s_tir, tirx
from tvm.tirx import IterVar

from tvmflow.errors import CompileError
from tvmflow.ir.expressions import nodes_in
from tvmflow.ir.names import LONGEST_FUNCTION


def test_an_operator_without_loops_is_named():
    x = relax.Var("x", relax.TensorType((1, 4, 1, 8), "float32"))
    grid = relax.Var("grid", relax.TensorType((1, 2, 5, 5), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, grid]):
        with builder.dataflow():
            first = builder.emit(relax.op.nn.relu(x))
            # TVM divides by the distance of the first row's centre from the last one's.
            bad = builder.emit(
                relax.op.image.grid_sample(
                    first, grid, padding_mode="reflection", align_corners=True
                ),
                name_hint="the_sample",
            )
            result = builder.emit_output(relax.op.nn.relu(bad))
        builder.emit_func_output(result)
    with pytest.raises(CompileError, match=r"relax\.image\.grid_sample of the node the_sample"):
        through("fuse", builder.get(), target="llvm")


def test_names_of_functions_are_no_longer_than_those_of_files():
    """And still tell functions apart that begin alike."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 4), "float32"))
    steps = [relax.op.exp, relax.op.sigmoid, relax.op.tanh, relax.op.sqrt] * 20
    with builder.function("main", [x]):
        with builder.dataflow():
            results = []
            for last in (relax.op.abs, relax.op.negative):
                y = x
                for step in [*steps, last]:
                    y = builder.emit(step(y))
                results.append(builder.emit(relax.op.sum(y)))
            result = builder.emit_output(relax.Tuple(results))
        builder.emit_func_output(result)
    mod = through("fuse", builder.get(), target="llvm")
    names = [var.name_hint for var, function in mod.functions_items()]
    assert max(map(len, names)) == LONGEST_FUNCTION
    assert len(names) >= 3


def _gated(readers: int) -> tvm.IRModule:
    """A map times the gate that a convolution makes of its means; ``readers`` of the map."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 8, 9, 9), "float32"))
    with builder.function("main", [x], attrs={"num_input": 1}):
        with builder.dataflow():
            weights = relax.const(np.ones((8, 8, 1, 1), "float32"))
            made = builder.emit(relax.op.nn.conv2d(x, weights))
            means = relax.op.mean(made if readers > 1 else x, (2, 3), keepdims=True)
            gate = relax.op.sigmoid(relax.op.nn.conv2d(builder.emit(means), weights))
            result = builder.emit_output(relax.op.nn.relu(relax.op.multiply(made, gate)))
        builder.emit_func_output(result)
    return builder.get()


def test_a_gate_is_not_computed_for_each_pixel():
    mod = through("fuse", _gated(2), target="llvm")
    for _, function in mod.functions_items():
        if not isinstance(function, tirx.PrimFunc):
            continue
        extents = [
            {int(v.dom.extent) for v in block.iter_vars}
            for block in nodes_in(function.body, s_tir.SBlock)
        ]
        sums = [
            any(v.iter_type == IterVar.CommReduce for v in block.iter_vars)
            for block in nodes_in(function.body, s_tir.SBlock)
        ]
        # A function that sums for a gate, of one pixel, writes no map.
        if any(has_sum and 9 not in of for has_sum, of in zip(sums, extents, strict=True)):
            assert not any(9 in of for of in extents), function


def test_a_map_with_one_reader_is_still_fused_with_it():
    mod = through("fuse", _gated(1), target="llvm")
    kernels = [f for _, f in mod.functions_items() if isinstance(f, tirx.PrimFunc)]
    # The convolution with the product that follows, and the gate's two.
    assert len(kernels) == 3
