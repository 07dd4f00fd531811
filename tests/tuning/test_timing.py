"""Timing two kernels in turn: how often, in which order, and what is concluded."""

from __future__ import annotations

import random
import statistics
import types

import pytest

from tvmflow.tuning import session
from tvmflow.tuning.timing import (
    LOST,
    MOST_PAIRS,
    PAIRS,
    StopRule,
    is_faster,
    rated,
    time_alone,
    time_in_turn,
)


class Clock:
    """Kernels of given costs, on a machine whose speed changes from run to run."""

    def __init__(self, seed: int = 0, noise: float = 0.0, drift: float = 1.0):
        self.order: list[float] = []
        self._random = random.Random(seed)
        self._noise, self._drift = noise, drift

    def kernel(self, cost):
        def run():
            self.order.append(cost)
            drifted = cost * self._drift ** len(self.order)
            return drifted * self._random.lognormvariate(0, self._noise)

        return lambda rounds: [run() for _ in range(rounds)]

    def compare(self, cost, rival):
        pairs = time_in_turn(self.kernel(cost), self.kernel(rival), StopRule())
        return [ours / theirs for ours, theirs in zip(*pairs, strict=True)]


@pytest.mark.parametrize(
    ("cost", "pairs"), [(9.0, 2), (1.2, LOST), (0.99, PAIRS), (0.9, PAIRS), (1.0, LOST)]
)
def test_clear_cases_end_early(cost, pairs):
    clock = Clock()
    assert len(clock.compare(cost, 1.0)) == pairs
    assert len(clock.order) == 2 * pairs


def test_who_runs_first_changes_from_pair_to_pair():
    clock = Clock()
    clock.compare(0.9, 1.0)
    assert clock.order[:6] == [1.0, 0.9, 0.9, 1.0, 1.0, 0.9]


def test_what_stays_unclear_ends():
    counts = [len(Clock(seed, 0.3).compare(0.97, 1.0)) for seed in range(200)]
    assert max(counts) == MOST_PAIRS
    assert statistics.mean(counts) < 20


def test_drift_does_not_count():
    # Speed doubles and doubles again within the comparison.
    ratios = Clock(drift=1.05).compare(0.9, 1.0)
    assert is_faster(ratios)
    assert statistics.median(rated(ratios, 1e-3)) == pytest.approx(0.9e-3, rel=0.06)


@pytest.mark.parametrize(("cost", "most"), [(1.0, 0.03), (1.1, 0.005), (0.6, 1.0)])
def test_chance_seldom_replaces_the_best(cost, most):
    won = [is_faster(Clock(seed, 0.3).compare(cost, 1.0)) for seed in range(1000)]
    assert sum(won) <= most * len(won)
    if cost < 1:
        assert sum(won) > 0.9 * len(won)


def test_who_is_not_surely_faster_gets_no_less_than_the_best_cost():
    unsure = [0.5, 0.6, 1.2, 0.9, 1.1, 0.7, 0.8, 1.3, 0.95]
    assert not is_faster(unsure)
    costs = rated(unsure, 3e-4)
    assert 3e-4 <= statistics.median(costs) < 3.0001e-4
    assert costs[0] / costs[1] == pytest.approx(0.5 / 0.6)
    sure = [0.9, 0.91, 0.89, 0.9, 0.92, 0.88, 0.9, 0.9, 0.9]
    assert statistics.median(rated(sure, 3e-4)) == pytest.approx(2.7e-4)
    slower = [1.3, 1.2, 1.4]
    assert rated(slower, 3e-4) == pytest.approx((3.9e-4, 3.6e-4, 4.2e-4))


def test_a_kernel_alone_is_timed_until_its_costs_agree():
    rule = StopRule(repeats=4, rounds=6)
    assert len(time_alone(Clock().kernel(1e-3), rule)) == 4
    assert len(time_alone(Clock(noise=0.5).kernel(1e-3), rule)) == 24


@pytest.mark.parametrize(("after_s", "is_slower"), [(1.2, True), (1.0, False), (0.7, False)])
def test_whole_networks_are_compared_in_turn(monkeypatch, after_s, is_slower):
    now = [0.0]
    noise = random.Random(5)

    class Network:
        inputs = ()
        metadata = types.MappingProxyType({})

        def __init__(self, seconds):
            self._seconds = seconds

        def __call__(self, _inputs):
            now[0] += self._seconds * noise.lognormvariate(0, 0.1)

    monkeypatch.setattr(
        session, "_running", lambda _stack, _network, knobs, _index: Network(knobs.get("s", 1.0))
    )
    monkeypatch.setattr(session.time, "perf_counter", lambda: now[0])
    found = session.compare_networks(None, None, {"s": after_s})
    assert found.is_slower == is_slower
    assert found.after_ms / found.before_ms == pytest.approx(after_s, rel=0.1)
