"""`tvmflow.verify` is a function and a package."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from support.operators import single

import tvmflow
import tvmflow.verify.compare
from tvmflow.errors import VerificationError

pytestmark = pytest.mark.onnxruntime


def test_of_a_module_and_of_its_file(tmp_path: Path):
    path = tmp_path / "net.onnx"
    onnx.save(single("Exp", [(2, 3)]), path)
    with tvmflow.compile(path, target="llvm") as module:
        file = module.save(tmp_path / "net.so")
        report = tvmflow.verify(path, module)
    assert report.passed
    given = tvmflow.verify(path, file, {"x0": np.ones((2, 3), np.float32)})
    assert repr(given).startswith(f"<Report: passed against {given.reference}, 1 output, at most")
    assert len(repr(given)) < 120
    # The package is one still, by the name of the function.
    assert tvmflow.verify.compare.Report is type(report)
    onnx.save(single("Sinh", [(2, 3)]), path)
    failed = tvmflow.verify(path, file)
    assert repr(failed).startswith("<Report: failed")
    with pytest.raises(VerificationError):
        failed.raise_if_failed()
