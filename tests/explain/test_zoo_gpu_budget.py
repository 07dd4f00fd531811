"""Budgets of the zoo's networks on phones' GPUs: full waves, nothing spilled.

The networks cannot be exported here, so that only the file is checked;
`benchmarks/zoo_gpu_budget.py` writes it.
"""

from __future__ import annotations

from itertools import product

import pytest
import zoo
import zoo_gpu_budget
from zoo_gpu_budget import DTYPES, FIGURES, GPUS, NARROW, place_of

CONTENT = zoo_gpu_budget.read()
NAMES = [architecture.name for architecture in zoo.ARCHITECTURES]


@pytest.mark.parametrize(("dtype", "gpu"), list(product(DTYPES, GPUS)))
def test_all_networks_fill_their_waves(dtype, gpu):
    rows = CONTENT["budgets"][place_of(dtype, gpu)]
    assert list(rows) == NAMES
    least = {name: row[0] for name, row in rows.items()}
    assert {name: share for name, share in least.items() if share < NARROW} == {}


@pytest.mark.parametrize(("dtype", "gpu"), list(product(DTYPES, GPUS[:2])))
def test_nothing_spills(dtype, gpu):
    rows = CONTENT["budgets"][place_of(dtype, gpu)]
    assert {name for name, row in rows.items() if len(row) != len(FIGURES)} == set()
    assert {name: row[-1] for name, row in rows.items() if row[-1]} == {}


# What a change shows --------------------------------------------------------------------------


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
