"""Budgets of the zoo's networks on phones' GPUs: what is kept of a network, and compared."""

from __future__ import annotations

import zoo_gpu_budget


def found(lanes: float, spills: int) -> zoo_gpu_budget.Kernels:
    row = [lanes, 0.9, 1.0, 8.0, float(spills)]
    return {"adreno-740": {"row": row, "lanes": {"a": lanes, "b": 1.0}, "spills": {"a": spills}}}


def test_narrow_and_spilling_kernels_are_named():
    content = {"budgets": {}, "narrow": {}, "spilling": {}}
    zoo_gpu_budget.keep(content, "resnet18", "fp32", found(0.25, 3))
    assert content == {
        "budgets": {"fp32, adreno-740": {"resnet18": [0.25, 0.9, 1.0, 8.0, 3.0]}},
        "narrow": {"fp32, adreno-740": {"resnet18": {"a": 0.25}}},
        "spilling": {"fp32, adreno-740": {"resnet18": {"a": 3}}},
    }
    now = found(0.75, 0)
    assert list(zoo_gpu_budget.lane_rows(content, "resnet18", "fp32", now)) == [
        ["resnet18", "fp32, adreno-740", "a", "25% → 75%"]
    ]
    changes = zoo_gpu_budget.changes_of(content, "resnet18", "fp32", now)
    assert {change.figure.name for change in changes if change.is_better} == {
        "least lanes",
        "spills",
    }
    zoo_gpu_budget.keep(content, "resnet18", "fp32", now)
    assert content["narrow"] == content["spilling"] == {"fp32, adreno-740": {}}
    worse = zoo_gpu_budget.changes_of(content, "resnet18", "fp32", found(0.25, 3))
    assert {change.figure.name for change in worse if change.is_worse} == {"least lanes", "spills"}
