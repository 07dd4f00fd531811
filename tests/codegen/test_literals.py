"""Constants in kernels' source."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import s_tir, te, tirx

import tvmflow.compiler.generate  # noqa: F401 (registers what writes OpenCL C)
from tvmflow.codegen.tir_pipeline import TIR_PIPELINE


@pytest.mark.opencl
@pytest.mark.parametrize("lanes", [1, 4])
def test_constants_reach_kernels_with_all_of_their_bits(lanes):
    """TVM writes seven digits of the nine that tell fp32 numbers apart."""
    values = np.random.default_rng(1).lognormal(0, 20, 200).astype(np.float32)
    values = np.concatenate([values, np.float32([0.1, 1, -0.0, 1e-44, 3.4028235e38, np.inf])])
    x = te.placeholder((lanes,), "float32", name="x")

    def multiplied(number: int, value: float) -> te.Tensor:
        constant = tirx.const(value, "float32")
        return te.compute((lanes,), lambda i: x[i] * constant, name=f"y{number}")

    results = [multiplied(number, float(value)) for number, value in enumerate(values)]
    schedule = s_tir.Schedule(te.create_prim_func([x, *results]))
    for number in range(len(results)):
        block = schedule.get_sblock(f"y{number}")
        (loop,) = schedule.get_loops(block)
        item, inner = schedule.split(loop, [None, lanes])
        schedule.bind(item, "threadIdx.x")
        if lanes > 1:
            schedule.vectorize(inner)
    built = tvm.tirx.build(schedule.mod, tvm.target.Target("opencl"), pipeline=TIR_PIPELINE)
    device = tvm.device("opencl")
    ones = tvm.runtime.tensor(np.ones(lanes, np.float32), device)
    outputs = [tvm.runtime.empty((lanes,), "float32", device) for _ in values]
    built["main"](ones, *outputs)
    found = np.array([output.numpy() for output in outputs])
    # Devices may take the smallest numbers for zero.
    wanted = np.repeat(values[:, None], lanes, axis=1)
    same = (found == wanted) | ((np.abs(wanted) < np.finfo("f").tiny) & (found == 0))
    assert same.all()
