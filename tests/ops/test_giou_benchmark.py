"""The benchmark of the loss: both of its steps, as far as a machine without a GPU goes."""

from __future__ import annotations

import json
from importlib.util import find_spec

import pytest
from support.torch_benchmarks import check_that_it_says_so, run

SCRIPT = "giou.py"
STEPS = ("naive loop", "concatenated", "padded", "fused", "conditional", "ragged")


def test_without_a_gpu_it_says_so_and_ends_well(tmp_path):
    (tmp_path / "functions.json").write_text(json.dumps({"target": "cuda", "entries": []}))
    check_that_it_says_so(SCRIPT, "--functions", tmp_path)


def test_a_folder_without_functions_is_refused(tmp_path):
    done = run(SCRIPT, "--functions", tmp_path)
    assert done.returncode == 2
    assert "has no functions; make them with --compile-only" in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(not find_spec("torch"), reason="PyTorch is not installed")
def test_both_steps_on_the_cpu(tmp_path):
    sizes = ("--batch", 16, "--boxes", 20, "--repetitions", 2)
    done = run(SCRIPT, "--compile-only", tmp_path, "--target", "llvm", *sizes)
    assert done.returncode == 0, done.stderr
    done = run(SCRIPT, "--functions", tmp_path, "--quick", "--rounds", 2)
    assert done.returncode == 0, done.stderr
    assert "batch 16, up to 20 boxes" in done.stdout
    for step in STEPS:
        assert step in done.stdout


@pytest.mark.slow
@pytest.mark.skipif(not find_spec("torch"), reason="PyTorch is not installed")
def test_faces_on_the_cpu(tmp_path):
    sizes = ("--batch", 16, "--boxes", 20, "--rounds", 2, "--repetitions", 1, 4)
    case = ("--case", "faces", "--quick", "--target", "llvm", "--traces", tmp_path / "traces")
    done = run(SCRIPT, *case, *sizes)
    assert done.returncode == 0, done.stderr
    for row in (*STEPS, "network", "count, none", "mask, list"):
        assert row in done.stdout
    traces = list((tmp_path / "traces").iterdir())
    assert len(traces) == 7
    for path in traces:
        assert json.loads(path.read_text())["traceEvents"], path


def test_a_folder_of_another_case_is_refused(tmp_path):
    manifest = {"case": "loss", "target": "llvm", "entries": []}
    (tmp_path / "functions.json").write_text(json.dumps(manifest))
    if not find_spec("torch"):
        pytest.skip("PyTorch is not installed")
    done = run(SCRIPT, "--functions", tmp_path, "--case", "faces")
    assert done.returncode == 2
    assert "has functions of --case loss, not faces" in done.stderr
