"""The tuner's accounting: order of trials, best costs, end of a session, and records."""

from __future__ import annotations

import math
import statistics
import threading
import time
from concurrent.futures import Future
from dataclasses import replace
from itertools import count
from types import SimpleNamespace

import pytest
from support.tunables import (
    NoisyRunner,
    PretendedBuilder,
    PretendedRunner,
    cost_of,
    done,
    drifted,
    failed,
    tasks,
)

from tvmflow.errors import FarmError
from tvmflow.journal.journal import Journal
from tvmflow.journal.records import Error
from tvmflow.tuning import tuner as module
from tvmflow.tuning.choose_search import searches
from tvmflow.tuning.measure import WRONG
from tvmflow.tuning.tuner import Budget, Tuner


@pytest.fixture
def tune(tmp_path):
    """Tune the pointwise task, or all; return progress, builder, runner and the records."""

    def run(
        measure=cost_of,
        budget=None,
        *,
        runner=None,
        every=False,
        builder=PretendedBuilder,
        same=dict,
        kind="random",
        seed=0,
        **options,
    ):
        chosen = list(tasks().values()) if every else [tasks()["conv2d_1x1"]]
        budget = budget or Budget(trials=12)
        builder, runner = builder(tmp_path, same), runner or PretendedRunner(measure)
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
    # All heuristics are tried before anything else.
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
    (second,), builder, runner, records = tune(budget=Budget(12))
    # The best so far is built again: others are measured against it.
    assert len(builder.built) == 1 + 4
    assert runner.incumbents == [first.best_knobs] * 4 or second.best < first.best
    assert runner.incumbents[0] == first.best_knobs
    assert second.trials == len(records) == 12
    assert second.heuristic == first.heuristic
    assert len({tuple(r.knobs.items()) for r in records}) == 12
    (third,), builder, _, _ = tune(budget=Budget(12))
    assert not builder.built
    assert third.best_knobs == second.best_knobs


def test_a_stopped_session_loses_no_trial(tune, tmp_path):
    numbers = count()

    def measure(knobs):
        if next(numbers) == 20:
            raise KeyboardInterrupt
        return cost_of(knobs)

    with pytest.raises(KeyboardInterrupt):
        tune(measure, Budget(24))
    (progress,), builder, _, records = tune(budget=Budget(24))
    assert progress.trials == len(records) == 24
    assert len(builder.built) <= 24 - 8


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
    assert sorted(knobs["tile_o"] for knobs in runner.measured) == sorted(kinds)
    costs = {r.knobs["tile_o"]: r.cost for r in records}
    assert all(costs[r.knobs["tile_o"]] == r.cost for r in records)


def test_noise_does_not_choose_what_is_slower(tune, tmp_path):
    gains, missed = [], 0
    for seed in range(60):
        (tmp_path / "a.journal").unlink(missing_ok=True)
        runner = NoisyRunner(seed)
        (progress,), _, _, records = tune(runner=runner, seed=seed, budget=Budget(40))
        found = cost_of(progress.best_knobs)
        gains.append(cost_of(progress.task.heuristic) / found)
        # A journal's reader chooses the same record as the tuner.
        least = min(records, key=lambda record: record.cost)
        assert dict(least.knobs) == progress.best_knobs
        missed += found > 1.3 * min(cost_of(record.knobs) for record in records)
    assert min(gains) >= 1
    assert statistics.median(gains) > 1.4
    assert missed < 12


def test_an_unlucky_heuristic_does_not_let_anything_win(tune):
    numbers = count()

    def measure(knobs):
        # The first measurement is disturbed; all others are really a little slower.
        return cost_of(knobs) * (1.7 if next(numbers) == 0 else 1.0)

    class Unlucky(PretendedRunner):
        def _found(self, built, incumbent):
            found = super()._found(built, incumbent)
            heuristic = tasks()["conv2d_1x1"].heuristic
            mine = 1.0 if built.knobs == heuristic else 1.05
            return replace(found, ratios=(mine,) * 9 if incumbent else ())

    (progress,), _, runner, records = tune(runner=Unlucky(measure))
    assert progress.best_knobs == progress.task.heuristic
    assert progress.speedup == 1.0
    # All others were timed in turn with it, and are relative to it.
    assert runner.incumbents[1:] == [progress.task.heuristic] * (len(runner.incumbents) - 1)
    assert [r.cost / progress.heuristic for r in records[1:]] == pytest.approx([1.05] * 11)


def test_who_wins_against_another_has_to_beat_the_best(tune, tmp_path):
    repeated = 0
    for seed in range(5):
        (tmp_path / "a.journal").unlink(missing_ok=True)
        (progress,), _, runner, records = tune(runner=Late(), budget=Budget(30), seed=seed)
        best = next(r for r in records if r.cost == min(record.cost for record in records))
        assert dict(best.knobs) == progress.best_knobs
        # The result is the same for any incumbent, and any number of measurements.
        assert progress.best == pytest.approx(cost_of(progress.best_knobs))
        repeated += len(runner.measured) - len(records)
    # Some were faster than an incumbent that was replaced, and were measured again.
    assert repeated > 0


class Late(PretendedRunner):
    """Answers after more trials were requested, as several devices do."""

    def __init__(self):
        super().__init__()
        self._asked = []
        self._lock = threading.Lock()

    def submit(self, built, case, incumbent=None):
        done = super().submit(built, case, incumbent)
        if incumbent is None:
            return done
        future = Future()
        with self._lock:
            self._asked.append((future, done.result()))
            is_full = len(self._asked) == 4
        if is_full:
            self.answer()
        else:
            threading.Timer(0.05, self.answer).start()
        return future

    def answer(self):
        with self._lock:
            asked, self._asked = self._asked, []
        for future, measured in asked:
            future.set_result(measured)


def test_patience_and_time_end_a_task(tune, tmp_path):
    (progress,), _, _, _ = tune(lambda knobs: 1e-4, Budget(100, patience=10))
    # Two batches may be in progress.
    assert 10 <= progress.trials <= 10 + 2 * 8
    (tmp_path / "a.journal").unlink()
    progress, _builder, _, _ = tune(budget=Budget(100, seconds=0), every=True)
    assert all(found.trials == 1 for found in progress)
    assert all(math.isfinite(found.heuristic) for found in progress)


def test_a_throttled_device_is_asked_again_where_no_rival_throttles_with_it(tune, monkeypatch):
    pauses = []
    clock = SimpleNamespace(**{**vars(time), "sleep": pauses.append})
    monkeypatch.setattr(module, "time", clock)
    numbers = count()

    def hot(knobs):
        # The first measurement, and every second one, comes from a device at half speed.
        return cost_of(knobs) if next(numbers) % 2 else drifted(2 * cost_of(knobs), 2.0)

    _, _, _, records = tune(hot)
    assert all(r.cost == pytest.approx(cost_of(r.knobs)) for r in records)
    assert len(pauses) == 1


def test_a_device_that_stays_slow_is_not_waited_for_again(tune, monkeypatch):
    pauses = []
    clock = SimpleNamespace(**{**vars(time), "sleep": pauses.append})
    monkeypatch.setattr(module, "time", clock)
    found, _, _, records = tune(lambda knobs: drifted(2 * cost_of(knobs), 2.0), every=True)
    assert len(found) > 1
    assert all(r.cost == pytest.approx(cost_of(r.knobs)) for r in records)
    assert len(pauses) == module.REPEATS


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


@pytest.mark.parametrize("change", [{"driver": "2.0"}, {"name": "another"}])
def test_costs_of_another_device_are_not_taken(tune, change):
    # The first device is ten times as fast: its costs would never be reached.
    (before,), _, _, _ = tune(lambda knobs: 0.1 * cost_of(knobs), Budget(60), kind="grid")
    other = PretendedRunner()
    for name, value in change.items():
        setattr(other, name, value)
    (after,), builder, _, records = tune(runner=other, budget=Budget(8))
    assert after.trials == 8
    assert after.heuristic == pytest.approx(cost_of(after.task.heuristic))
    assert builder.built[:2] == [after.task.heuristic, before.best_knobs]
    assert after.best == pytest.approx(cost_of(after.best_knobs))
    assert len({r.device for r in records}) == 2
    # The session continues from its own records.
    (again,), _, _, _ = tune(runner=other, budget=Budget(8))
    assert (again.trials, again.best, again.heuristic) == (8, after.best, after.heuristic)


def test_what_was_predicted_is_tried_early_and_its_cost_not_taken(tune, tmp_path):
    (before,), _, _, records = tune(budget=Budget(60), kind="grid")
    best = min(records, key=lambda record: record.cost)
    (tmp_path / "a.journal").unlink()
    with Journal.open(tmp_path / "a.journal", "a") as journal:
        journal.append(replace(best, target=best.target.predicted, costs=(1e-12,)))
    (after,), builder, _, _ = tune(budget=Budget(4))
    assert builder.built[:2] == [after.task.heuristic, before.best_knobs]
    assert (after.trials, after.best) == (4, pytest.approx(cost_of(after.best_knobs)))


def test_failures_that_no_device_had_are_remembered(tune):
    class Failing(PretendedBuilder):
        def submit(self, task, knobs):
            built = super().submit(task, knobs)
            if knobs == task.heuristic:
                return built
            return done(replace(built.result(), source_hash="", path=None, error="no code"))

    (before,), _, _, records = tune(builder=Failing, budget=Budget(8))
    assert (before.trials, before.failures) == (8, 7)
    assert {r.device.name for r in records if r.error} == {""}
    (after,), builder, _, _ = tune(budget=Budget(8))
    assert (after.failures, builder.built) == (7, [])


def test_what_ends_a_runner_ends_the_session(tune):
    def gone(knobs):
        raise FarmError("No device is left.", remedy="Restart one.")

    with pytest.raises(FarmError, match="No device is left"):
        tune(gone)


@pytest.mark.parametrize("cost_s", [0.5, 1.0])
def test_what_is_under_way_when_time_ends_is_reckoned_with(tune, monkeypatch, cost_s):
    """Only trials move the clock: it ends within a tenth of the budget."""
    clock = [0.0]
    pretended = SimpleNamespace(monotonic=lambda: clock[0], time=time.time, sleep=time.sleep)
    monkeypatch.setattr(module, "time", pretended)

    def slow(knobs):
        clock[0] += cost_s
        return cost_of(knobs)

    tune(slow, Budget(1000, seconds=40.0), every=True)
    assert 36.0 <= clock[0] <= 44.0
    assert Budget(3, seconds=50.0).since(0.0) == Budget(3, seconds=50.0 - clock[0])
    assert Budget(3, seconds=5.0).since(0.0).seconds == 0
    assert Budget(3).since(0.0) == Budget(3)
