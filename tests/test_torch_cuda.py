"""Both steps of the comparison with PyTorch, as far as they run without a GPU."""

from __future__ import annotations

import json
from importlib.util import find_spec

import pytest
from support.torch_benchmarks import check_that_it_says_so, run

SCRIPT = "torch_cuda.py"

needs_torch = pytest.mark.skipif(not find_spec("torch"), reason="PyTorch is not installed")


def test_without_a_gpu_it_says_so_and_ends_well(tmp_path):
    check_that_it_says_so(SCRIPT, "--modules", tmp_path)
    check_that_it_says_so(SCRIPT)


@pytest.mark.nvcc
def test_the_first_step_keeps_machine_code(tmp_path):
    done = run(
        SCRIPT, "--compile-only", tmp_path, "--only", "GlobalAverage.*b1-fp32", "--arch", "sm_80"
    )
    assert done.returncode == 0, done.stderr
    manifest = json.loads((tmp_path / "modules.json").read_text())
    (entry,) = manifest["entries"]
    assert (entry["family"], manifest["target"], manifest["arch"]) == ("pooling", "cuda", "sm_80")
    (code,) = tmp_path.glob("cuda/*.fatbin")
    assert code.read_bytes()[:4] == bytes.fromhex("50ed55ba")
    assert (tmp_path / f"{entry['name']}-fp32.so").exists()


@needs_torch
@pytest.mark.slow
def test_both_steps_on_the_cpu(tmp_path):
    only = "(GlobalAverage|MaxPool|Softmax|LayerNorm|MatMul_1x4096|Conv_144x56).*b1-fp32|v2_b1-fp32"
    done = run(SCRIPT, "--compile-only", tmp_path, "--target", "llvm", "--only", only)
    assert done.returncode == 0, done.stderr
    done = run(SCRIPT, "--modules", tmp_path, "--target", "llvm", "--rounds", 2)
    assert done.returncode == 0, done.stderr
    assert "mobilenet_v2_b1" in done.stdout
    assert "wrong" not in done.stdout
