"""Random networks compute right results for any channel count, in every storage.

The seed is in a test's name; ``make test-rest`` runs more of them, and
``RANDOM_GRAPHS=1000`` sets their number.
"""

from __future__ import annotations

import os
from shutil import which

import numpy as np
import onnxruntime
import pytest
from support.drivers import processor_drivers
from support.random_graphs import draw

import tvmflow
from tvmflow.verify.tolerance import NETWORK, STORED_AS_HALF, assert_close

#: Configurations that graphs take in turn, so that each gets its share of few graphs.  A graph
#: for LLVM takes half the time of one whose kernels an OpenCL driver builds.
WAYS = (
    ("llvm", "cpu", "buffer", "fp32"),
    ("opencl", "adreno", "texture", "fp32"),
    ("llvm", "cpu", "auto", "fp32"),
    ("opencl", "cpu", "texture", "fp32"),
    ("llvm", "cpu", "auto", "fp32"),
    ("opencl", "adreno", "texture", "fp16"),
    ("llvm", "cpu", "auto", "fp32"),
    ("opencl", "mali", "buffer", "fp32"),
)
USUAL, MANY = 32, 336


def cases():
    listed = []
    count = int(os.environ.get("RANDOM_GRAPHS", MANY))
    for seed in range(count):
        way = WAYS[seed % len(WAYS)]
        marks = [pytest.mark.opencl] if way[0] == "opencl" else []
        if seed >= USUAL and "RANDOM_GRAPHS" not in os.environ:
            marks.append(pytest.mark.slow)
        listed.append(pytest.param(seed, *way, marks=marks, id=f"seed{seed}-" + "-".join(way)))
    return listed


def reference_of(model, feeds):
    # ONNX Runtime's optimiser merges Pad into pools that then refuse the padding.
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, feeds)


@pytest.mark.parametrize(("seed", "target", "device", "storage", "dtype"), cases())
def test_random_graph(seed, target, device, storage, dtype, compare, long_tier, under_oclgrind):
    model = draw(seed, operators=3)
    table = STORED_AS_HALF if dtype == "fp16" else NETWORK
    with tvmflow.compile(
        model, target=target, device=device, storage=storage, dtype=dtype, accumulate="fp32"
    ) as module:
        (info,) = module.inputs
        feeds = {"x": np.random.default_rng(seed).standard_normal(info.shape).astype(np.float32)}
        (reference,) = references = reference_of(model, feeds)
        if target == "llvm":
            (result,) = module(feeds).values()
            assert_close(result, reference, table)
            return
        # A graph runs on one driver, because building kernels takes most of the time; within each
        # configuration the drivers take turns.
        drivers = processor_drivers(quick=True)
        is_checked = long_tier and which("oclgrind") is not None
        turn = seed // len(WAYS) % (len(drivers) + is_checked)
        if turn < len(drivers):
            compare(module, feeds, references, table, on=drivers[turn : turn + 1])
        else:
            (result,) = under_oclgrind()(module, feeds).values()
            assert_close(result, reference, table, "under Oclgrind")
