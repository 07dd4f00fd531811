"""Candidates without a tuner: a small kernel for the host, right or wrong."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import tvm
from tvm import te

from tvmflow.tuning.building import ENTRY, Built, Case
from tvmflow.tuning.tasks import Argument

_EXTENT = 100


def library(path: Path, factor: float) -> Path:
    """Write a library that multiplies a vector by `factor`."""
    x = te.placeholder((_EXTENT,), name="x")
    y = te.compute((_EXTENT,), lambda i: x[i] * tvm.tirx.const(factor, "float32"), name="y")
    function = te.create_prim_func([x, y]).with_attr("global_symbol", ENTRY)
    built = tvm.tirx.build(tvm.IRModule({ENTRY: function}), target="llvm", pipeline="s_tir")
    built.export_library(str(path))
    return path


class Candidates:
    """Copies of one right kernel that differ in the name of the file."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._right = library(folder / "right.so", 3.0)
        self.wrong = library(folder / "wrong.so", 2.99)
        x = np.random.default_rng(7).standard_normal(_EXTENT).astype(np.float32)
        np.savez(folder / "case.npz", a0=x, r0=3 * x)
        self.case = Case(folder / "case.npz")

    def right(self, name: str) -> Built:
        path = self._folder / f"{name}.so"
        # Write it only once: servers may be reading it.
        if not path.exists():
            shutil.copy(self._right, path)
        return self._built(path)

    def failing(self) -> Built:
        return self._built(self.wrong)

    def _built(self, path: Path) -> Built:
        arguments = (Argument((_EXTENT,), "float32", ""),) * 2
        return Built("task", {"file": path.name}, "", path, arguments, None)
