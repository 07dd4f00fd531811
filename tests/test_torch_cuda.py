"""The comparison with PyTorch: both of its steps, as far as a machine without a GPU goes."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "torch_cuda.py"

needs_torch = pytest.mark.skipif(not find_spec("torch"), reason="PyTorch is not installed")


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
    done = run("--modules", tmp_path)
    assert done.returncode == 0, done.stderr
    lacks = "finds no NVIDIA GPU" if find_spec("torch") else "is not installed"
    assert done.stdout == f"PyTorch {lacks}: nothing measured\n"


@pytest.mark.nvcc
def test_the_first_step_keeps_machine_code(tmp_path):
    done = run("--compile-only", tmp_path, "--only", "GlobalAverage.*b1-fp32", "--arch", "sm_80")
    assert done.returncode == 0, done.stderr
    manifest = json.loads((tmp_path / "modules.json").read_text())
    (entry,) = manifest["entries"]
    assert (entry["family"], manifest["target"], manifest["arch"]) == ("pooling", "cuda", "sm_80")
    (code,) = tmp_path.glob("*.cubin")
    assert code.read_bytes()[:4] == b"\x7fELF"
    assert (tmp_path / f"{entry['name']}-fp32.so").exists()


@needs_torch
@pytest.mark.slow
def test_both_steps_on_the_cpu(tmp_path):
    only = "(GlobalAverage|MaxPool|Softmax|LayerNorm|MatMul_1x4096|Conv_144x56).*b1-fp32|v2_b1-fp32"
    done = run("--compile-only", tmp_path, "--target", "llvm", "--only", only)
    assert done.returncode == 0, done.stderr
    done = run("--modules", tmp_path, "--target", "llvm", "--rounds", 2)
    assert done.returncode == 0, done.stderr
    assert "mobilenet_v2_b1" in done.stdout
    assert "wrong" not in done.stdout
