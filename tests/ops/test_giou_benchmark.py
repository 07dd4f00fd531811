"""The benchmark of the loss: both of its steps, as far as a machine without a GPU goes."""

from __future__ import annotations

import json
from importlib.util import find_spec

import pytest
from torch_benchmarks import check_that_it_says_so, run

SCRIPT = "giou.py"


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
    done = run(SCRIPT, "--compile-only", tmp_path, "--target", "llvm")
    assert done.returncode == 0, done.stderr
    sizes = ("--batch", 16, "--boxes", 20, "--rounds", 2)
    done = run(SCRIPT, "--functions", tmp_path, "--quick", *sizes)
    assert done.returncode == 0, done.stderr
    for step in ("loop", "concatenation", "padding", "fused", "conditional", "ragged"):
        assert step in done.stdout
