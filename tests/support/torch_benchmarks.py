"""Scripts of `benchmarks/` that compare with PyTorch, run on a machine without a GPU."""

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
    """Check that it ends with status 0 and one sentence without PyTorch or a GPU."""
    if find_spec("torch"):
        import torch

        if torch.cuda.is_available():
            pytest.skip("there is a GPU")
    done = run(script, *arguments)
    assert done.returncode == 0, done.stderr
    lacks = "finds no NVIDIA GPU" if find_spec("torch") else "is not installed"
    assert done.stdout == f"PyTorch {lacks}: nothing measured\n"
