"""Booleans on OpenCL: vectors of them are never right, so such blocks stay scalar."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper
from support.operators import build, feeds_for

import tvmflow

CASES = {
    "compare": [("Greater", ["x", "z"], "y")],
    "compare_then_not": [("Greater", ["x", "z"], "g"), ("Not", ["g"], "y")],
    "and": [("Greater", ["x", "z"], "g"), ("Less", ["x", "half"], "l"), ("And", ["g", "l"], "y")],
    "is_nan": [("Sub", ["x", "z"], "d"), ("Sqrt", ["d"], "s"), ("IsNaN", ["s"], "y")],
    "cast": [("Greater", ["x", "z"], "g"), ("Cast", ["g"], "y")],
    "where": [("Greater", ["x", "z"], "g"), ("Where", ["g", "x", "z"], "y")],
}


@pytest.mark.parametrize("target", ["llvm", pytest.param("opencl", marks=pytest.mark.opencl)])
@pytest.mark.parametrize("shape", [(3, 8), (2, 3, 16), (5, 4)], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_booleans(case, shape, target):
    nodes = [
        helper.make_node(
            operator, inputs, [output], **({"to": TensorProto.FLOAT} if operator == "Cast" else {})
        )
        for operator, inputs, output in CASES[case]
    ]
    constants = {"half": np.float32(0.5)} if case == "and" else {}
    model = build(nodes, {"x": shape, "z": shape}, ["y"], constants, element_type=None)
    feeds = feeds_for(model)
    reference = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)[0]
    # Both values must occur: an output that is constant would prove little.
    assert len(np.unique(reference)) > 1
    with tvmflow.compile(model, target=target, device="cpu") as module:
        np.testing.assert_array_equal(module(**feeds)["y"], reference)
