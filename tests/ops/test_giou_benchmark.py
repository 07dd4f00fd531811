"""The benchmark of the loss: both of its steps, as far as a machine without a GPU goes."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "giou.py"


def run(*arguments):
    return subprocess.run(
        [sys.executable, str(SCRIPT), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )


def test_without_a_gpu_it_says_so_and_ends_well(tmp_path):
    if find_spec("torch"):
        import torch

        if torch.cuda.is_available():
            pytest.skip("there is a GPU")
    (tmp_path / "functions.json").write_text(json.dumps({"target": "cuda", "entries": []}))
    done = run("--functions", tmp_path)
    assert done.returncode == 0, done.stderr
    lacks = "finds no NVIDIA GPU" if find_spec("torch") else "is not installed"
    assert done.stdout == f"PyTorch {lacks}: nothing measured\n"


def test_a_folder_without_functions_is_refused(tmp_path):
    done = run("--functions", tmp_path)
    assert done.returncode == 2
    assert "has no functions; make them with --compile-only" in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(not find_spec("torch"), reason="PyTorch is not installed")
def test_both_steps_on_the_cpu(tmp_path):
    done = run("--compile-only", tmp_path, "--target", "llvm")
    assert done.returncode == 0, done.stderr
    sizes = ("--batch", 16, "--boxes", 20, "--rounds", 2)
    done = run("--functions", tmp_path, "--quick", *sizes)
    assert done.returncode == 0, done.stderr
    for step in ("loop", "concatenation", "padding", "fused", "conditional", "ragged"):
        assert step in done.stdout
