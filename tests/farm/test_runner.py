"""Measuring on several servers: shared work, and what happens when servers fail."""

from __future__ import annotations

import signal
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import wait
from dataclasses import replace
from typing import Any

import pytest
from support.farm_candidates import Candidates
from support.farms import FAULTY, PATIENCE_S, STOCK, Farm, eventually

from tvmflow.errors import FarmError
from tvmflow.farm import scheduler, server_info
from tvmflow.farm.runner import FarmRunner
from tvmflow.journal.records import Event
from tvmflow.runtime.secret import Address
from tvmflow.runtime.tracker import Tracker
from tvmflow.tuning.measure import BUILD, CRASH, WRONG, Config
from tvmflow.tuning.timing import StopRule

pytestmark = pytest.mark.slow

QUICK = Config(StopRule(rounds=1, repeats=2), min_repeat_ms=0)
#: Time limit of a trial, which takes milliseconds; processes on two cores pause for longer.
LIMIT_S = 10.0


@pytest.fixture(scope="module")
def candidates(tmp_path_factory: pytest.TempPathFactory) -> Candidates:
    return Candidates(tmp_path_factory.mktemp("candidates"))


class Events:
    """Events that a runner reported, by the servers' addresses."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._heard: list[Event] = []

    def __call__(self, event: Event) -> None:
        assert event.device.facts["address"] == event.details["server"]
        with self._lock:
            self._heard.append(event)

    def count(self, kind: str) -> int:
        with self._lock:
            return sum(event.kind == kind for event in self._heard)

    def of(self, kind: str) -> dict[Address, Mapping[str, Any]]:
        with self._lock:
            found = [event for event in self._heard if event.kind == kind]
        return {Address.parse(event.details["server"]): event.details for event in found}


@pytest.fixture
def events() -> Events:
    return Events()


@pytest.fixture
def run(farm: Farm, events: Events) -> Iterator[Any]:
    """Return a function that makes a runner for a key."""
    runners: list[FarmRunner] = []

    def start(key: str) -> FarmRunner:
        runner = FarmRunner(farm.address, key, "llvm", QUICK, LIMIT_S, events)
        runners.append(runner)
        return runner

    yield start
    for runner in runners:
        runner.close()


def measured_on(farm: Farm) -> Mapping[str, str]:
    """Return the tracker's list of running measurements, by server."""
    with Tracker(farm.address) as tracker:
        return tracker.summary().runs


def counts_of(runner: FarmRunner) -> Counter[Address]:
    """Return the number of trials of each server."""
    standings = runner.standings()
    return Counter({Address.parse(s.device.split()[-1]): s.trials for s in standings})


def test_two_servers_share_a_batch(farm: Farm, candidates: Candidates, run, pair):
    runner = run("pair")
    futures = []

    def both_measure() -> bool:
        """Keep work waiting until the tracker shows both servers measuring."""
        futures.extend(runner.submit(candidates.right("b"), candidates.case) for _ in range(4))
        return set(measured_on(farm)) == {str(server) for server in pair}

    eventually(both_measure)
    assert all(future.result(PATIENCE_S).error is None for future in futures)
    counts = counts_of(runner)
    assert counts.total() == len(futures)
    assert set(counts) == set(pair)
    assert all(future.result().cost > 0 for future in futures)


def test_servers_that_fail_lose_no_trial(farm: Farm, candidates: Candidates, run, events: Events):
    faults = {"FAULT_SLOW_S": "0.2", "FAULT_CRASH": "poison.so"}
    good, killed, hung, wrong, crashing, older = servers = [
        farm.start_server("zoo", FAULTY, **faults),
        farm.start_server("zoo", FAULTY, **faults),
        farm.start_server("zoo", FAULTY, **faults),
        farm.start_server("zoo", FAULTY, **faults, FAULT_LIBRARY=str(candidates.wrong)),
        farm.start_server("zoo", FAULTY, **faults | {"FAULT_CRASH": "poison.so odd.so"}),
        farm.start_server("zoo", FAULTY, FAULT_VERSION="0.0.1"),
    ]
    for server in servers:
        eventually(lambda server=server: farm.server(server))
    runner = run("zoo")
    futures = {}

    def submit(built) -> None:
        futures[runner.submit(built, candidates.case)] = built.knobs["file"]

    for index in range(20):
        submit(candidates.right(f"right{index}"))
    for server, number in ((killed, signal.SIGKILL), (hung, signal.SIGSTOP)):
        eventually(lambda server=server: str(server) in measured_on(farm))
        farm.send(server, number)

    # Each server gets a trial that it fails at, sooner or later.
    def all_are_set_aside() -> bool:
        submit(candidates.right("odd"))
        return {wrong, crashing, older} <= events.of("set_aside").keys()

    eventually(all_are_set_aside)
    submit(candidates.right("poison"))
    submit(candidates.failing())
    _, pending = wait(futures, PATIENCE_S)
    assert not pending
    errors: dict[str, set[str | None]] = {}
    for future, name in futures.items():
        errors.setdefault(name, set()).add(future.result().error)
    assert errors.pop("poison.so") == {CRASH}
    assert errors.pop("wrong.so") == {WRONG}
    assert all(found == {None} for found in errors.values()), errors
    # Every trial given to a server ended exactly once: with a result or as a failure.
    passed = sum(future.result().error is None for future in futures)
    assert counts_of(runner).total() == passed + events.count("failed")
    assert counts_of(runner)[good] > 0
    aside = events.of("set_aside")
    assert aside.keys() == {killed, hung, wrong, crashing, older}
    assert "crashed, was killed or was lost" in aside[killed]["reason"]
    assert "did not answer in time" in aside[hung]["reason"]
    assert "wrong results" in aside[wrong]["reason"]
    standings = {s.device.split()[-1]: s for s in runner.standings()}
    assert "wrong results" in standings[str(wrong)].aside
    assert standings[str(good)].aside == ""
    assert standings[str(good)].trials == counts_of(runner)[good]
    assert aside[wrong]["for_s"] is None
    assert "crashed, was killed or was lost" in aside[crashing]["reason"]
    assert "has tvmflow 0.0.1" in aside[older]["reason"]
    assert counts_of(runner)[older] == 0


def test_what_crashes_two_servers_is_at_fault_itself(
    candidates: Candidates, run, events: Events, pair
):
    runner = run("pair")
    poison = runner.submit(candidates.right("poison"), candidates.case)
    after = runner.submit(candidates.right("after"), candidates.case)
    assert poison.result(PATIENCE_S).error == CRASH
    assert after.result(PATIENCE_S).error is None
    assert len(events.of("failed")) == 2
    assert not events.of("set_aside")


def test_a_run_ends_with_its_last_server(
    farm: Farm, candidates: Candidates, run, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(FarmRunner, "patience_s", 3.0)
    server = farm.serve("single", FAULTY, FAULT_SLOW_S="1")
    runner = run("single")
    futures = [runner.submit(candidates.right(f"s{i}"), candidates.case) for i in range(2)]
    eventually(lambda: str(server) in measured_on(farm))
    farm.send(server, signal.SIGKILL)
    for future in futures:
        with pytest.raises(FarmError, match="No device is left for the key 'single'") as caught:
            future.result(PATIENCE_S)
    assert str(server) in caught.value.details
    with pytest.raises(FarmError):
        runner.submit(candidates.right("late"), candidates.case).result(0)


def test_a_server_that_others_keep_is_not_waited_for_without_limit(
    farm: Farm, candidates: Candidates, run, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(scheduler, "LENT_WITHIN_S", 3.0)
    server = farm.serve("kept", "-m", STOCK)
    with Tracker(farm.address) as other:
        other.request("kept")
        eventually(lambda: other.offer(1.0))
        runner = run("kept")
        future = runner.submit(candidates.right("waiting"), candidates.case)
        with pytest.raises(FarmError, match="lent none within") as caught:
            future.result(PATIENCE_S)
        assert "tvmflow farm status" in caught.value.remedy
        (standing,) = runner.standings()
        assert (standing.trials, standing.aside) == (0, "")
        assert str(server) in standing.device


def test_a_closed_runner_gives_its_servers_back(farm: Farm, candidates: Candidates, run, pair):
    runner = run("pair")
    # Enough work for minutes.
    futures = [runner.submit(candidates.right("c"), candidates.case) for _ in range(2000)]
    futures[0].result(PATIENCE_S)
    runner.close()
    assert all(future.done() for future in futures)
    assert futures[-1].cancelled()
    with Tracker(farm.address) as tracker:
        eventually(lambda: tracker.summary().queues["pair"].free == 2)


def test_servers_of_another_version_are_refused(run, pair, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(server_info, "__version__", "9.9.9")
    with pytest.raises(FarmError, match=r"has tvmflow .* where 9\.9\.9 .* expected") as caught:
        run("pair")
    assert any(str(server) in caught.value.message for server in pair)
    assert "same version" in caught.value.remedy


def test_a_key_that_nobody_serves_is_refused(farm: Farm, run, pair):
    with pytest.raises(FarmError, match=r"Nobody serves the key 'pixel8'.*pair") as caught:
        run("pixel8")
    assert "tvmflow farm serve" in caught.value.remedy


def test_what_was_not_built_is_not_measured(candidates: Candidates, run, pair):
    runner = run("pair")
    built = replace(candidates.right("none"), path=None, error="no code")
    measured = runner.submit(built, candidates.case).result(0)
    assert (measured.error, measured.message) == (BUILD, "no code")
    assert counts_of(runner).total() == 0


def test_a_server_without_the_plugin_gets_no_textures(
    farm: Farm, candidates: Candidates, run, events: Events
):
    server = farm.serve("bare", "-m", STOCK, TVM_DEVICE_BACKEND_AUTOLOAD="0")
    runner = run("bare")
    plain = candidates.right("plain")
    assert runner.submit(plain, candidates.case).result(PATIENCE_S).error is None
    scoped = tuple(replace(a, scope="global.texture:p1") for a in plain.arguments)
    future = runner.submit(replace(plain, arguments=scoped), candidates.case)
    with pytest.raises(FarmError, match="No device is left for the key 'bare'") as caught:
        future.result(PATIENCE_S)
    assert "tune with `storage=buffer`" in caught.value.details
    assert counts_of(runner) == {server: 1}
