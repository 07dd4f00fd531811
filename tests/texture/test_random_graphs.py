"""Random networks are right, whatever their channels, in every storage.

The seed is in a test's name; ``--slow`` or ``RUN_SLOW=1`` runs more of them, and
``RANDOM_GRAPHS=1000`` as many as it says.
"""

from __future__ import annotations

import os

import numpy as np
import onnxruntime
import pytest
from random_graphs import draw

import tvmflow
from tvmflow.tolerance import assert_close

#: Where a graph runs goes round, so that each way gets its share of few graphs.  A graph for
#: LLVM takes a third of the time of one whose kernels an OpenCL driver builds.
WAYS = (
    ("llvm", "cpu", "buffer"),
    ("opencl", "adreno", "texture"),
    ("llvm", "cpu", "auto"),
    ("opencl", "adreno", "buffer"),
    ("llvm", "cpu", "auto"),
    ("opencl", "cpu", "texture"),
    ("llvm", "cpu", "auto"),
)
USUAL, MANY = 60, 600


def cases():
    listed = []
    count = int(os.environ.get("RANDOM_GRAPHS", MANY))
    for seed in range(count):
        target, device, storage = WAYS[seed % len(WAYS)]
        marks = [pytest.mark.opencl] if target == "opencl" else []
        if seed >= USUAL and "RANDOM_GRAPHS" not in os.environ:
            marks.append(pytest.mark.slow)
        name = f"seed{seed}-{target}-{device}-{storage}"
        listed.append(pytest.param(seed, target, device, storage, marks=marks, id=name))
    return listed


@pytest.mark.parametrize(("seed", "target", "device", "storage"), cases())
def test_random_graph(seed, target, device, storage):
    model = draw(seed, operators=3)
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    x = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    # ONNX Runtime's optimiser merges Pad into pools that then refuse the padding.
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    reference = session.run(None, {"x": x})[0]
    with tvmflow.compile(model, target=target, device=device, storage=storage) as module:
        assert_close(module(x=x)[module.outputs[0].name], reference)
