"""Machine code of candidates that no module has."""

from __future__ import annotations

import pytest
from support.tunables import tasks

from tvmflow.devices.gpus import find_gpu
from tvmflow.explain.isa.candidates import machine_code_for
from tvmflow.tuning.offline import predict, why_unknown


@pytest.mark.mesa
def test_candidates_have_the_registers_that_mesa_gives_them() -> None:
    chosen = [task for task in tasks("adreno").values() if why_unknown(task) is None]
    gpu = find_gpu("adreno740")
    (small, large, broken) = machine_code_for(gpu)(
        [(chosen[0], {**chosen[0].heuristic, **size})
         for size in ({"tile_w": 1, "tile_o": 1}, {"tile_w": 7, "tile_o": 1}, {"tile_w": 99})]
    )  # fmt: skip
    assert small is not None
    assert large is not None
    assert broken is None
    assert small.compiler.startswith("Mesa")
    assert 2 <= small.registers < large.registers <= 48
    assert small.waves > large.waves
    assert small.spills == 0
    for each in predict(chosen, gpu, machine_code_for(gpu)):
        assert each.best.code is not None
        assert each.best.code.spills == 0
