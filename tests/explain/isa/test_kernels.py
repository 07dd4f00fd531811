"""Kernels of module files: what they are said to compute."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import numpy_helper
from onnx import parser as onnx_parser

import tvmflow
from tvmflow.devices.gpus import find_gpu
from tvmflow.explain.isa.kernels import kernels_in

#: Three layers of one shape, which one function computes.
LAYERS = """
<ir_version: 8, opset_import: ["": 17]>
net (float[1, 8, 6, 6] x) => (float[1, 8, 6, 6] y) {
  a = Conv (x, w)
  b = Relu (a)
  c = Conv (b, v)
  d = Relu (c)
  e = Conv (d, u)
  y = Relu (e)
}
"""


def test_a_kernel_has_the_operations_of_all_its_launches(tmp_path: Path) -> None:
    model = onnx_parser.parse_model(LAYERS)
    rng = np.random.default_rng(0)
    for name in "wvu":
        array = rng.normal(size=(8, 8, 1, 1)).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    path = tmp_path / "net.so"
    with tvmflow.compile(model, target="opencl", device="adreno") as module:
        module.save(path)
        steps = module.metadata["memory"]["steps"]
    _, kernels = kernels_in(path, find_gpu("adreno-740"))
    (convolution,) = [each for each in kernels if "conv" in each.name]
    assert steps.count(convolution.function) == 3
    products, clipped = 3 * 8 * 8 * 36, 3 * 8 * 36
    assert convolution.flops is not None
    # A multiply-add is two operations; a maximum may count as one.
    assert 2 * products <= convolution.flops <= 2 * products + 2 * clipped
