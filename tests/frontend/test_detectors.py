"""Ends of detectors against ONNX Runtime: the same detections, in the same order."""

from __future__ import annotations

from contextlib import closing

import onnxruntime
import pytest
from detectors import DETECTORS, feeds_for

import tvmflow
from tvmflow.verify.tolerance import assert_close, table_for

pytestmark = [pytest.mark.opencl, pytest.mark.onnxruntime]

COLUMNS = {
    "llvm": {"target": "llvm"},
    "auto": {"target": "opencl"},
    "auto fp16": {"target": "opencl", "dtype": "fp16"},
    "adreno texture": {"target": "opencl", "device": "adreno", "storage": "texture"},
    "adreno texture fp16": {
        "target": "opencl", "device": "adreno", "storage": "texture", "dtype": "fp16",
        "accumulate": "fp32",
    },
    "mali": {"target": "opencl", "device": "mali"},
    "nvidia": {"target": "opencl", "device": "nvidia"},
    "standalone": {"target": "opencl", "format": "standalone"},
}  # fmt: skip
KINDS = ("none", "some", "all", "ties")


def reference(model, feeds):
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return dict(zip([o.name for o in session.get_outputs()], session.run(None, feeds), strict=True))


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("name", DETECTORS)
def test_detections(name, column):
    model = DETECTORS[name]()
    with closing(tvmflow.compile(model, **COLUMNS[column])) as module:
        for kind in KINDS:
            feeds = feeds_for(model, kind)
            got = module(feeds)
            expected = reference(model, feeds)
            assert got.names == tuple(expected)
            for output, array in expected.items():
                assert got[output].shape == array.shape, (kind, output)
                assert got[output].dtype == array.dtype
                if array.size:
                    assert_close(got[output], array, table_for(module.metadata), f"{kind} {output}")
