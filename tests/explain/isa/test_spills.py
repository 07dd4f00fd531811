"""Layers that spilled on Adreno by Mesa's compiler, because of what their kernels read at once.

The causes were a row of texels that no two columns share, a group with barriers, all of whose items
must have their registers at a time, a window of many texels, and chunks of halves whose loop a
compiler unrolls with the loop around it.
"""

from __future__ import annotations

import pytest
from support.onnx_models import model_of
from support.operators import random

import tvmflow
from tvmflow.devices.gpus import find_gpu
from tvmflow.explain.isa.report import SUITE, machine_code

#: Layers: the shape of the input, of the weights, and attributes.
LAYERS = {
    "patches_of_4": ((1, 64, 64, 64), (64, 64, 4, 4), "strides = [4, 4]"),
    "patches_of_8": ((1, 32, 128, 128), (32, 32, 8, 8), "strides = [8, 8]"),
    "patches_of_16": ((1, 3, 224, 224), (192, 3, 16, 16), "strides = [16, 16]"),
    "shared_sums": ((1, 128, 16, 16), (256, 128, 3, 3), "strides = [2, 2], pads = [1, 1, 1, 1]"),
    "depthwise": (
        *((1, 192, 28, 28), (192, 1, 5, 5)),
        "strides = [2, 2], pads = [2, 2, 2, 2], group = 192",
    ),
    "gelu": ((1, 176, 7, 7), (704, 176, 1, 1), "pads = [0, 0, 0, 0]"),
}


@pytest.mark.mesa
@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_nothing_spills(dtype, tmp_path):
    nodes = [
        f"y_{name} = Conv<{attributes}>(x_{name}, w_{name})"
        for name, (_, _, attributes) in LAYERS.items()
        if name != "gelu"
    ]
    nodes.append("a = Conv(x_gelu, w_gelu) e = Erf(a) y_gelu = Mul(a, e)")
    inputs = {f"x_{name}": shape for name, (shape, _, _) in LAYERS.items()}
    weights = {f"w_{name}": random(shape, 0.02) for name, (_, shape, _) in LAYERS.items()}
    model = model_of(" ".join(nodes), inputs, [f"y_{name}" for name in LAYERS], weights)
    path = tmp_path / "layers.so"
    tvmflow.compile(model, target="opencl", device="adreno", dtype=dtype).save(path)
    for name in ("adreno-660", "adreno-740"):
        report = machine_code(path, find_gpu(name), suite=SUITE)
        assert not report.failures
        assert len(report.kernels) >= len(LAYERS)
        assert {kernel.kernel: kernel.spills for kernel in report.kernels if kernel.spills} == {}
