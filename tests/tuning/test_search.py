"""Searches: only what is allowed, nothing twice, everything in the end; repeatable and useful."""

from __future__ import annotations

import statistics
from itertools import product

import pytest
from support.knob_choices import candidates
from support.tunables import cost_of, tasks

from tvmflow.errors import TvmflowError
from tvmflow.tuning.choose_search import SEARCHES, check_search, searches
from tvmflow.tuning.search import key_of


def course(kind, seed, batches=4, device="cpu"):
    """Return all proposals of a search that receives their pretended costs."""
    task = tasks(device)["conv2d_1x1"]
    search = searches(kind, seed, 8 * batches)(task)
    search.note(task.heuristic)
    search.learn([(task.heuristic, cost_of(task.heuristic))])
    found = []
    for _ in range(batches):
        batch = search.propose(8)
        search.learn([(knobs, cost_of(knobs)) for knobs in batch])
        found += batch
    return found


@pytest.mark.parametrize("kind", SEARCHES)
def test_proposals_are_allowed_and_new(kind):
    task = tasks()["conv2d_1x1"]
    found = course(kind, 0)
    assert len(found) == 32
    assert all(task.allows(knobs) for knobs in found)
    assert len({key_of(knobs) for knobs in [*found, task.heuristic]}) == 33
    for knobs in found:
        assert all(knobs[name] in values for name, values in task.space.items())


@pytest.mark.parametrize("kind", SEARCHES)
def test_proposals_are_repeatable(kind):
    assert course(kind, 3, 2) == course(kind, 3, 2)
    if kind != "grid":
        assert course(kind, 3, 2) != course(kind, 4, 2)


@pytest.mark.parametrize("kind", ["random", "grid", "neighbourhood"])
def test_a_search_ends_when_all_is_tried(kind):
    task = min((t for t in tasks().values() if t.is_tunable), key=lambda t: len(allowed(t)))
    search = searches(kind, 0, 5)(task)
    found = []
    while batch := search.propose(8):
        found += batch
    assert {key_of(knobs) for knobs in found} == allowed(task)


@pytest.mark.parametrize("trials", [1, 5, 16])
def test_a_grid_leaves_gaps_of_one_size(trials):
    """The first trials are spread over the whole space."""
    task = tasks()["conv2d_1x1"]
    space = [dict(zip(task.space, values, strict=True)) for values in product(*task.space.values())]
    step = len(space) // trials
    expected = [knobs for knobs in space[::step] if task.allows(knobs)][:trials]
    assert len(expected) >= min(trials, 3)
    assert searches("grid", 0, trials)(task).propose(len(expected)) == expected


def allowed(task):
    return {key_of(vars(k)) for k in candidates(task.family, task.shape, task.target.device)}


def test_evolution_ends_where_little_is_left():
    task = tasks()["depthwise"]
    search = searches("evolutionary", 0, 1000)(task)
    search.learn([(task.heuristic, 1e-5)])
    found = []
    while (batch := search.propose(8)) and len(found) < 1000:
        search.learn([(knobs, 1e-5) for knobs in batch])
        found += batch
    assert len(found) < 1000
    assert len(found) > len(allowed(task)) / 2


def test_evolution_proposes_better_than_chance():
    def later(kind):
        courses = [course(kind, seed, device="adreno") for seed in range(3)]
        return statistics.mean(cost_of(knobs) for found in courses for knobs in found[16:])

    # Chance stays at 4.3e-4.
    assert later("evolutionary") < 0.9 * later("random")


def test_neighbours_come_first():
    task = tasks()["conv2d_1x1"]
    search = searches("neighbourhood", 0, 32)(task)
    steps = []
    for knobs in search.propose(20):
        changed = [name for name in knobs if knobs[name] != task.heuristic[name]]
        steps.append(len(changed))
    assert steps[0] == 0
    assert steps[1:4] == [1, 1, 1]


def test_failures_are_learnt_from():
    task = tasks()["conv2d_1x1"]
    search = searches("evolutionary", 0, 32)(task)
    batch = search.propose(8)
    search.learn([(knobs, float("inf")) for knobs in batch])
    assert len(search.propose(8)) == 8


def test_an_unknown_search_is_refused():
    with pytest.raises(TvmflowError, match="'genetic' is not known; expected one of evolutionary"):
        check_search("genetic")
