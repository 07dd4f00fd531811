"""The tuner's books: what is tried first, what counts, when it ends, and what is kept."""

from __future__ import annotations

import math
from itertools import count

import pytest
from tunables import PretendedBuilder, PretendedRunner, cost_of, drifted, failed, tasks

from tvmflow.errors import FarmError
from tvmflow.tuning import tuner as module
from tvmflow.tuning.budget import Budget
from tvmflow.tuning.journal import Journal
from tvmflow.tuning.measure import WRONG
from tvmflow.tuning.records import Error
from tvmflow.tuning.session import searches
from tvmflow.tuning.tuner import Tuner


@pytest.fixture
def tune(tmp_path):
    """Tune the pointwise task, or all; return progress, builder, runner and the records."""

    def run(
        measure=cost_of, budget=None, *, every=False, same=dict, kind="random", seed=0, **options
    ):
        chosen = list(tasks().values()) if every else [tasks()["conv2d_1x1"]]
        budget = budget or Budget(trials=12)
        builder, runner = PretendedBuilder(tmp_path, same), PretendedRunner(measure)
        with Journal.open(tmp_path / "a.journal", "a") as journal:
            made = searches(kind, seed, budget.trials)
            tuner = Tuner(chosen, builder, runner, journal, budget, made, **options)
            progress = tuner.run()
        with Journal.open(tmp_path / "a.journal") as journal:
            return progress, builder, runner, list(journal.trials())

    return run


def test_the_heuristic_is_trial_0_of_each_task(tune):
    progress, builder, _, records = tune(every=True)
    assert len(progress) == len(tasks())
    for found in progress:
        task = found.task
        own = [r for r in records if r.workload == task.workload]
        assert dict(own[0].knobs) == task.heuristic
        assert own[0].source == "heuristic"
        assert {r.source for r in own[1:]} <= {"measured"}
        assert found.heuristic == pytest.approx(cost_of(task.heuristic))
        assert found.best <= found.heuristic
        assert len(own) == found.trials <= 12
    # All heuristics before anything else.
    heuristics = [task.heuristic for task in tasks().values()]
    assert all(knobs in heuristics for knobs in builder.built[: len(heuristics)])


def test_a_journal_has_the_best_that_was_found(tune, tmp_path):
    (progress,), _, _, records = tune(kind="evolutionary", budget=Budget(trials=40))
    assert progress.best == min(record.cost for record in records)
    assert progress.speedup > 1.2
    with Journal.open(tmp_path / "a.journal") as journal:
        task = progress.task
        assert dict(journal.best(task.workload, task.journal_target).knobs) == progress.best_knobs


@pytest.mark.parametrize("kind", ["random", "evolutionary"])
def test_a_seed_repeats_a_run(tune, tmp_path, kind):
    courses = []
    for _ in range(2):
        (tmp_path / "a.journal").unlink(missing_ok=True)
        courses.append([dict(r.knobs) for r in tune(kind=kind, seed=5, budget=Budget(20))[3]])
    assert courses[0] == courses[1]


def test_the_same_command_goes_on(tune):
    (first,), _, _, _ = tune(budget=Budget(8))
    (second,), builder, _, records = tune(budget=Budget(12))
    assert len(builder.built) == 4
    assert second.trials == len(records) == 12
    assert second.heuristic == first.heuristic
    assert len({tuple(r.knobs.items()) for r in records}) == 12
    (third,), builder, _, _ = tune(budget=Budget(12))
    assert not builder.built
    assert third.best_knobs == second.best_knobs


def test_a_stopped_session_loses_no_trial(tune, tmp_path):
    numbers = count()

    def measure(knobs):
        if next(numbers) == 6:
            raise KeyboardInterrupt
        return cost_of(knobs)

    with pytest.raises(KeyboardInterrupt):
        tune(measure)
    (progress,), builder, _, records = tune()
    assert progress.trials == len(records) == 12
    assert len(builder.built) < 12


def test_wrong_results_never_win(tune):
    heuristic = tasks()["conv2d_1x1"].heuristic
    (progress,), _, _, records = tune(lambda k: cost_of(k) if k == heuristic else failed(WRONG))
    assert progress.best_knobs == heuristic
    assert progress.failures == 11
    assert [r.error for r in records[1:]] == [Error.WRONG_RESULT] * 11
    assert all(r.costs == () for r in records[1:])


def test_equal_kernels_are_measured_once(tune):
    (_progress,), builder, runner, records = tune(same=lambda knobs: knobs["tile_o"])
    kinds = {knobs["tile_o"] for knobs in builder.built}
    assert len(builder.built) == 12
    # The best ones are measured twice, to be sure.
    assert {knobs["tile_o"] for knobs in runner.measured} == kinds
    assert len(runner.measured) <= 2 * len(kinds)
    costs = {r.knobs["tile_o"]: r.cost for r in records}
    assert all(costs[r.knobs["tile_o"]] == r.cost for r in records)


def test_a_lucky_measurement_does_not_win(tune):
    seen = []

    def lucky(knobs):
        seen.append(dict(knobs))
        first = seen.count(knobs) == 1
        slow = knobs != tasks()["conv2d_1x1"].heuristic
        return 1e-6 if first and slow and len(seen) == 4 else 1e-4 * (1 + slow)

    (progress,), _, _runner, records = tune(lucky)
    assert progress.best_knobs == progress.task.heuristic
    assert any(1e-6 in record.costs for record in records)


def test_patience_and_time_end_a_task(tune, tmp_path):
    (progress,), _, _, _ = tune(lambda knobs: 1e-4, Budget(100, patience=10))
    # Two batches may be under way.
    assert 10 <= progress.trials <= 10 + 2 * 8
    (tmp_path / "a.journal").unlink()
    progress, _builder, _, _ = tune(budget=Budget(100, seconds=0), every=True)
    assert all(found.trials == 1 for found in progress)
    assert all(math.isfinite(found.heuristic) for found in progress)


def test_a_throttled_device_is_asked_again(tune, monkeypatch):
    monkeypatch.setattr(module, "PAUSE_S", 0.0)
    numbers = count()

    def hot(knobs):
        # Every second measurement of a candidate is from a device at half its speed.
        return drifted(2 * cost_of(knobs), 2.0) if next(numbers) % 2 else cost_of(knobs)

    _, _, _, records = tune(hot)
    assert all(r.cost == pytest.approx(cost_of(r.knobs)) for r in records)


def test_small_drift_is_taken_out(tune):
    _, _, _, records = tune(lambda knobs: drifted(1.2 * cost_of(knobs), 1.2))
    assert all(r.cost == pytest.approx(cost_of(r.knobs)) for r in records)


def test_relatives_are_tried_after_the_heuristic(tune, tmp_path):
    (before,), _, _, _ = tune(budget=Budget(60), kind="grid")
    (tmp_path / "a.journal").rename(tmp_path / "old.journal")
    with Journal.open(tmp_path / "old.journal") as old:
        _, builder, _, records = tune(budget=Budget(3), relatives=[old])
    assert builder.built[1] == before.best_knobs
    assert len(records) == 3


def test_what_ends_a_runner_ends_the_session(tune):
    def gone(knobs):
        raise FarmError("No device is left.", remedy="Restart one.")

    with pytest.raises(FarmError, match="No device is left"):
        tune(gone)
