"""Whole networks in 8 bits, as ONNX Runtime's quantizer writes them."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from support.quantized_networks import NETWORKS, picture, quantized
from support.turns import in_turn

import tvmflow
from tvmflow.verify.reference import exact_session

WAYS = [
    pytest.param("llvm", "cpu", "buffer", id="llvm"),
    pytest.param("opencl", "adreno", "texture", id="textures", marks=pytest.mark.opencl),
    pytest.param("opencl", "cpu", "buffer", id="cpu", marks=pytest.mark.opencl),
    pytest.param("opencl", "mali", "auto", id="mali", marks=pytest.mark.opencl),
    pytest.param("opencl", "nvidia", "auto", id="nvidia", marks=pytest.mark.opencl),
    pytest.param("opencl", "adreno", "buffer", id="adreno", marks=pytest.mark.opencl),
]
IDS = tuple(way.id for way in WAYS)


@pytest.mark.onnxruntime
@pytest.mark.parametrize(("name", "target", "device", "storage"), in_turn(NETWORKS, WAYS, IDS))
def test_results_of_quantized_operators_are_equal_to_the_last_bit(name, target, device, storage):
    """A deviation by one step in one tensor would spread to all results."""
    model = quantized(name, "QOperator")
    session = exact_session(model.SerializeToString(), onnxruntime.SessionOptions())
    with tvmflow.compile(model, target=target, device=device, storage=storage) as module:
        for seed in range(4):
            feeds = picture(model, seed)
            results = module(feeds)
            for output, wanted in zip(session.get_outputs(), session.run(None, feeds), strict=True):
                assert len(np.unique(wanted)) > 8
                np.testing.assert_array_equal(results[output.name], wanted)
