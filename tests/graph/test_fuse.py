"""Legalisation and fusion: what cannot be turned into loops is named."""

from __future__ import annotations

import pytest
from first_stages import through
from tvm import relax

from tvmflow.errors import CompileError
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
