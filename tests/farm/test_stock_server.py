"""A server of TVM alone measures what the builder makes, textures included."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.farms import PATIENCE_S, STOCK, Farm
from support.networks import squeeze_and_excite

from tvmflow.compiler.options import CompileOptions
from tvmflow.farm.runner import FarmRunner
from tvmflow.tuning.building import Builder, Case
from tvmflow.tuning.measure import WRONG, Config
from tvmflow.tuning.session import Network
from tvmflow.tuning.timing import StopRule


@pytest.mark.opencl
def test_a_server_of_tvm_alone_measures_textures(farm: Farm, tmp_path: Path):
    network = Network(squeeze_and_excite(), CompileOptions(device="adreno", storage="texture"))
    task = max(network.tasks(), key=lambda task: sum(bool(a.scope) for a in task.arguments))
    assert any(a.scope.startswith("global.texture") for a in task.arguments)
    builder = Builder(1)
    farm.serve("textures", "-m", STOCK)
    runner = FarmRunner(farm.address, "textures", "opencl", Config(StopRule(rounds=1, repeats=2)))
    try:
        built, case = builder.submit(task, None).result(), builder.make_case(task).result()
        measured = runner.submit(built, case).result(PATIENCE_S)
        assert (measured.error, measured.message) == (None, "")
        assert measured.cost > 0
        assert measured.device
        arrays = dict(np.load(case.path))
        arrays["r0"] = arrays["r0"] + np.float32(0.01) * np.abs(arrays["r0"]).max()
        np.savez(tmp_path / "other.npz", **arrays)
        assert runner.submit(built, Case(tmp_path / "other.npz")).result(PATIENCE_S).error == WRONG
    finally:
        runner.close()
        builder.close()
