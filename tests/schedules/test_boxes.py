"""The families of custom operators: functions that try them, names in journals, reads counted."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest
from onnx import helper
from support.first_stages import chosen_schedules
from support.operators import build, random
from tvm import te

from tvmflow.devices.target import resolve
from tvmflow.explain.profiling.counting import count_kernels
from tvmflow.ir.operators import OPERATORS
from tvmflow.schedules import FAMILIES, schedule_function
from tvmflow.schedules.boxes import masked_mean, per_box
from tvmflow.schedules.family import facts_of, read_knobs

#: Names of families and of their fields, as recorded in journals.
RECORDED = {
    "boxes": (
        {"samples": 7, "boxes": 37, "outputs": 2, "whole": True},
        {"boxes": 1024, "vector": 16, "group_size": 1},
    ),
    "masked_mean": (
        {"samples": 7, "boxes": 37, "limited": True, "packed": False},
        {"groups": 16, "group_size": 1, "boxes": 1024, "skip": "warp"},
    ),
}


def test_convolutions_do_not_try_custom_families(monkeypatch):
    def refuse(workload):
        raise AssertionError("was asked")

    for family in (per_box, masked_mean):
        monkeypatch.setattr(family, "match", refuse)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[1] * 4),
        helper.make_node("Softmax", ["a"], ["y"]),
    ]
    weights = {"w": random((6, 5, 3, 3), 0.2).astype(np.float32)}
    schedules = chosen_schedules(build(nodes, {"x": (1, 5, 9, 7)}, ["y"], weights))
    assert "conv2d" in {choice["family"] for choice in schedules.values()}


@pytest.mark.parametrize("name", RECORDED)
def test_names_in_journals(name):
    shape, knobs = RECORDED[name]
    family = next(family for family in FAMILIES if name == family.NAME)
    assert facts_of(family.Shape(**shape)) == shape
    assert asdict(read_knobs(family, knobs)) == knobs


@pytest.mark.parametrize("target", ["opencl", "cuda"])
def test_every_box_that_the_mean_reads_is_counted(target):
    operator, spec = OPERATORS["GIoULoss"], resolve(target, "nvidia")
    boxes = [te.placeholder((7, 37, 4), "float32", name) for name in ("pred", "target")]
    outputs = operator.compute([*boxes, None, None, None], operator.attributes)
    with spec.tvm_target:
        found = schedule_function(te.create_prim_func([*boxes, *outputs]), spec)
    (count,) = count_kernels(found.schedule.mod["main"], on_gpu=True)
    assert (count.bytes_read, count.bytes_written) == (2 * 7 * 37 * 4 * 4, 4 + 4)
