"""The networks that come with the ``onnx`` package, written by nobody here, on every target."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import tvmflow
from tvmflow.errors import DeviceError
from tvmflow.verify.tolerance import NETWORK

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import onnx_networks  # noqa: E402 (a script's folder is not a package)

WAYS = {
    "llvm": {"target": "llvm"},
    "opencl": {"target": "opencl"},
    "textures": {"target": "opencl", "device": "adreno", "storage": "texture"},
}


@pytest.mark.slow
@pytest.mark.opencl
@pytest.mark.parametrize("name", onnx_networks.NETWORKS)
@pytest.mark.parametrize("way", WAYS)
def test_a_network_is_right(name, way, compare):
    model = onnx_networks.make(name)
    picture = np.random.default_rng(1).standard_normal((1, 3, 224, 224)).astype(np.float32)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    feeds = {session.get_inputs()[0].name: picture}
    references = session.run(None, feeds)
    assert np.ptp(references[0]) > 1
    try:
        module = tvmflow.compile(model, **WAYS[way]).open()
    except DeviceError as error:
        # PoCL's largest image depends on the machine's memory.
        if "exceeds its limit of" not in error.message:
            raise
        pytest.skip(error.message)
    with module:
        compare(module, feeds, references, NETWORK)
