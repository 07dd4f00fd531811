"""Postprocessing of detectors gives ONNX Runtime's detections, in the same order."""

from __future__ import annotations

from contextlib import closing

import onnx
import onnxruntime
import pytest
from support.cuda_host import cuda_host
from support.detectors import DETECTORS, feeds_for

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
#: Targets, all but one with the slow tests, as each takes seconds to compile.
EVERY = [c if c == "llvm" else pytest.param(c, marks=pytest.mark.slow) for c in COLUMNS]
KINDS = ("none", "some", "all", "ties")


def reference(model, feeds):
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return dict(zip([o.name for o in session.get_outputs()], session.run(None, feeds), strict=True))


@pytest.mark.parametrize("column", EVERY)
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


def test_verify_compares_numbers_of_detections(tmp_path):
    """More or fewer detections are wrong, whatever their values."""
    path = tmp_path / "yolo.onnx"
    onnx.save(DETECTORS["yolo"](), path)
    feeds = feeds_for(onnx.load(path), "some")
    with closing(tvmflow.compile(path, target="llvm")) as module:
        report = tvmflow.verify(path, module, feeds)
        assert report.passed
        assert [output.name for output in report.outputs] == ["selected", "detections"]
    with closing(tvmflow.compile(DETECTORS["yolo"](most=3), target="llvm")) as module:
        assert not tvmflow.verify(path, module, feeds).passed


def test_a_library_checks_itself(tmp_path):
    """The self-test compares counts, and zeros after the detections."""
    with closing(tvmflow.compile(DETECTORS["retinanet"](), format="standalone")) as module:
        assert module.self_test().compared > 3
        assert [str(info) for info in module.outputs] == [
            "boxes: float32[≤10, 4]", "scores: float32[≤10]", "labels: int64[≤10]"
        ]  # fmt: skip


@pytest.mark.cuda_host
@pytest.mark.parametrize("name", DETECTORS)
def test_kernels_for_cuda(name):
    """CUDA kernels that are compiled for the host give the same detections."""
    model = DETECTORS[name]()
    with closing(tvmflow.compile(model, target="cuda", device="nvidia")) as module:
        for kind in ("none", "some"):
            feeds = feeds_for(model, kind)
            got = cuda_host()(module, feeds)
            for output, array in reference(model, feeds).items():
                assert got[output].shape == array.shape, name
                assert_close(got[output], array, table_for(module.metadata), output)
