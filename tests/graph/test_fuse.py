"""Legalisation and fusion: what cannot be turned into loops is named."""

from __future__ import annotations

import pytest
from tvm import relax

from tvmflow.errors import CompileError
from tvmflow.graph.fuse import legalize_and_fuse
from tvmflow.target import resolve


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
        legalize_and_fuse(builder.get(), resolve("llvm"))
