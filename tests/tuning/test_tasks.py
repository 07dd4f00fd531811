"""Tasks: what there is to tune is what is compiled."""

from __future__ import annotations

import numpy as np
import pytest
from support.tunables import model, tasks

import tvmflow
from tvmflow.compiler.options import CompileOptions
from tvmflow.ir.scope import is_texture
from tvmflow.tuning.session import Network


@pytest.mark.parametrize("storage", ["buffer", "texture"])
def test_tasks_are_the_functions_that_are_compiled(storage):
    options = {"target": "opencl", "device": "adreno", "storage": storage}
    found = Network(model(), CompileOptions(**options)).tasks()
    with tvmflow.compile(model(), **options) as module:
        schedules = module.metadata["schedules"]
        kernels = module.metadata["kernels"]
    assert {name for task in found for name in task.names} == set(schedules)
    assert {kernel["function"] for kernel in kernels} == set(schedules)
    for task in found:
        assert schedules[task.name]["family"] == task.family.NAME
        assert schedules[task.name]["knobs"] == task.heuristic
    scopes = [argument.scope for task in found for argument in task.arguments]
    assert any(map(is_texture, scopes)) == (storage == "texture")


def test_equal_functions_are_one_task_that_counts_their_calls():
    pointwise = tasks()["conv2d_1x1"]
    assert pointwise.calls == 2
    assert tasks()["depthwise"].calls == 1
    assert pointwise.results == 1
    result = pointwise.arguments[-1]
    # Output channels in blocks of 16; every second row and column.
    assert result.shape == (1, 2, 9, 7, 16)
    # The sum over 20 channels for each element, whatever else the function does.
    assert pointwise.operations >= np.prod(result.shape) * 20


def test_a_digest_tells_shape_storage_and_device_apart():
    found = [tasks(), tasks("adreno", "buffer"), tasks("adreno", "texture"), tasks("mali")]
    digests = {by_family["depthwise"].digest for by_family in found}
    assert len(digests) == 4
    assert tasks.__wrapped__()["depthwise"].digest == tasks()["depthwise"].digest
