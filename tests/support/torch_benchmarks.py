"""Scripts of `benchmarks/` that measure beside PyTorch, where there is no GPU."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


def run(script, *arguments):
    return subprocess.run(
        [sys.executable, str(FOLDER / script), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )


def check_that_it_says_so(script, *arguments):
    """Without PyTorch or a GPU it ends with status 0 and one sentence."""
    if find_spec("torch"):
        import torch

        if torch.cuda.is_available():
            pytest.skip("there is a GPU")
    done = run(script, *arguments)
    assert done.returncode == 0, done.stderr
    lacks = "finds no NVIDIA GPU" if find_spec("torch") else "is not installed"
    assert done.stdout == f"PyTorch {lacks}: nothing measured\n"
