"""Whose fault a failure is, and that every trial ends once: without servers, in no time."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tvmflow.farm.scheduler import LENT_WITHIN_S, REST_S, Scheduler, Trial
from tvmflow.runtime.secret import Address
from tvmflow.tuning.building import Built, Case
from tvmflow.tuning.measure import CRASH, DEVICE, TIMEOUT, WRONG, Measured

A, B, C, D = (Address("10.0.0.1", port) for port in range(9090, 9094))
PATIENCE_S = 100.0
FINE = Measured((1e-3,), None, "", "gpu", 0.1)


def failed(kind: str) -> Measured:
    return Measured((), kind, f"it was {kind}", "gpu", 0.1)


def new_trial(index: int = 0) -> Trial:
    return Trial(Built("task", {"i": index}, "", None, (), None), Case(Path("unused")))


class Accounts:
    """A scheduler with devices, a clock that is set by hand, and what it reported."""

    def __init__(self, *devices: Address):
        self.now = 0.0
        self.events: list[tuple[str, Address]] = []
        self.reasons: dict[Address, str] = {}
        self.scheduler = Scheduler(self._heard, PATIENCE_S, lambda: self.now)
        self.scheduler.update(devices)

    def _heard(self, kind, address, details) -> None:
        self.events.append((kind, address))
        if kind == "set_aside":
            self.reasons[address] = details["reason"]

    def add(self, count: int = 1) -> list[Trial]:
        trials = [new_trial(index) for index in range(count)]
        for trial in trials:
            self.scheduler.add(trial)
        return trials

    def run(self, device: Address, measured: Measured) -> Trial:
        trial = self.scheduler.take(device)
        assert trial is not None
        self.scheduler.finish(device, trial, measured)
        return trial

    def settled(self) -> list[tuple[Trial, str | None]]:
        return [(trial, measured.error) for trial, measured in self.scheduler.take_finished()]


def test_a_success_ends_a_trial():
    accounts = Accounts(A)
    (trial,) = accounts.add()
    accounts.run(A, FINE)
    assert accounts.settled() == [(trial, None)]
    assert accounts.settled() == []
    assert accounts.scheduler.take(A) is None


@pytest.mark.parametrize("kind", [WRONG, CRASH, TIMEOUT, DEVICE])
def test_who_fails_where_another_succeeds_is_set_aside(kind):
    accounts = Accounts(A, B)
    (trial,) = accounts.add()
    accounts.run(A, failed(kind))
    assert accounts.settled() == []
    assert accounts.scheduler.take(A) is None
    accounts.run(B, FINE)
    assert accounts.settled() == [(trial, None)]
    assert ("set_aside", A) in accounts.events
    assert str(B) in accounts.reasons[A]
    assert f"it was {kind}" in accounts.reasons[A]
    accounts.add()
    assert not accounts.scheduler.offer(A)
    assert accounts.scheduler.take(A) is None
    assert accounts.scheduler.take(B) is not None


@pytest.mark.parametrize("kind", [WRONG, CRASH, TIMEOUT, DEVICE])
def test_what_fails_on_two_devices_is_at_fault_itself(kind):
    accounts = Accounts(A, B)
    (trial,) = accounts.add()
    accounts.run(A, failed(kind))
    accounts.run(B, failed(kind))
    assert accounts.settled() == [(trial, kind)]
    assert accounts.reasons == {}
    accounts.add(2)
    assert accounts.scheduler.offer(A)
    assert accounts.scheduler.offer(B)
    assert accounts.scheduler.take(A) is not None
    assert accounts.scheduler.take(B) is not None


def test_devices_that_fail_differently_need_a_third():
    accounts = Accounts(A, B, C)
    (trial,) = accounts.add()
    accounts.run(A, failed(CRASH))
    accounts.run(B, failed(WRONG))
    assert accounts.settled() == []
    accounts.run(C, FINE)
    assert accounts.settled() == [(trial, None)]
    assert accounts.reasons.keys() == {A, B}


def test_a_device_in_doubt_gets_only_what_others_failed_at():
    accounts = Accounts(A, B)
    first, second, third = accounts.add(3)
    accounts.run(A, failed(WRONG))
    assert accounts.scheduler.take(A) is None
    on_b = accounts.scheduler.take(B)
    assert on_b is first
    accounts.scheduler.finish(B, first, FINE)
    assert accounts.scheduler.take(B) is second
    accounts.scheduler.finish(B, second, failed(WRONG))
    # B now is in doubt, and only A, which is set aside, could help.
    assert accounts.settled() == [(first, None), (second, WRONG)]
    assert accounts.scheduler.take(B) is third


def test_the_only_device_is_believed():
    accounts = Accounts(A)
    first, second = accounts.add(2)
    accounts.run(A, failed(WRONG))
    assert accounts.settled() == [(first, WRONG)]
    assert accounts.scheduler.take(A) is second


def test_the_only_device_that_crashes_goes_on_when_it_is_back():
    accounts = Accounts(A)
    first, second = accounts.add(2)
    accounts.run(A, failed(CRASH))
    # Whether it was the candidate or the server is open until the server shows that it lives.
    assert accounts.settled() == []
    assert accounts.scheduler.take(A) is None
    assert accounts.scheduler.offer(A)
    assert accounts.settled() == [(first, CRASH)]
    assert accounts.scheduler.take(A) is second


def test_a_device_that_was_lost_and_nobody_else_ends_the_run():
    accounts = Accounts(A)
    (trial,) = accounts.add()
    accounts.run(A, failed(CRASH))
    accounts.scheduler.update([])
    assert not accounts.scheduler.is_hopeless()
    accounts.now += PATIENCE_S + 1
    accounts.scheduler.update([])
    assert accounts.scheduler.is_hopeless()
    # Nobody knows whether it was the candidate's fault: it has no result.
    assert accounts.settled() == []
    assert accounts.scheduler.give_up() == [trial]


def test_trials_do_not_wait_for_ever_for_devices_that_are_never_lent():
    accounts = Accounts(A)
    accounts.now += 2 * LENT_WITHIN_S
    # Nothing waited until now.
    accounts.add(2)
    assert not accounts.scheduler.is_starved()
    accounts.now += LENT_WITHIN_S - 1
    assert not accounts.scheduler.is_starved()
    accounts.now += 2
    assert accounts.scheduler.is_starved()
    assert not accounts.scheduler.is_hopeless()
    # One that is lent, and measures, is worth waiting for.
    assert accounts.scheduler.offer(A)
    assert not accounts.scheduler.is_starved()
    accounts.now += LENT_WITHIN_S - 1
    accounts.run(A, FINE)
    accounts.now += LENT_WITHIN_S - 1
    assert not accounts.scheduler.is_starved()
    accounts.run(A, FINE)
    accounts.now += 2 * LENT_WITHIN_S
    assert not accounts.scheduler.is_starved()


def test_devices_that_are_all_set_aside_for_good_end_the_run_at_once():
    accounts = Accounts(A, B)
    accounts.scheduler.set_aside(A, "another version", final=True)
    assert not accounts.scheduler.is_hopeless()
    accounts.scheduler.set_aside(B, "another version", final=True)
    assert accounts.scheduler.is_hopeless()
    assert accounts.scheduler.reasons() == f"{A}: another version\n{B}: another version"


def test_a_device_rests_once_and_then_for_good():
    accounts = Accounts(A, B)
    for round_s in (0, REST_S):
        accounts.now += round_s
        assert accounts.scheduler.offer(A)
        accounts.add()
        accounts.run(A, failed(CRASH))
        accounts.run(B, FINE)
        assert not accounts.scheduler.offer(A)
    accounts.now += 1e9
    assert not accounts.scheduler.offer(A)


def test_wrong_numbers_are_not_forgiven():
    accounts = Accounts(A, B)
    accounts.add()
    accounts.run(A, failed(WRONG))
    accounts.run(B, FINE)
    accounts.now += 1e9
    assert not accounts.scheduler.offer(A)


def test_a_trial_whose_second_device_never_comes_ends():
    accounts = Accounts(A, B)
    first, second = accounts.add(2)
    accounts.run(A, failed(WRONG))
    accounts.now += PATIENCE_S + 1
    accounts.scheduler.update([A, B])
    assert accounts.settled() == [(first, WRONG)]
    assert accounts.scheduler.take(A) is second


def test_a_trial_that_was_given_back_is_the_next_of_another_device():
    accounts = Accounts(A, B)
    first, second = accounts.add(2)
    assert accounts.scheduler.take(A) is first
    accounts.scheduler.give_back(A, first)
    assert accounts.scheduler.has_work
    assert accounts.scheduler.counts() == Counter({A: 0, B: 0})
    accounts.scheduler.set_aside(A, "no textures", final=True)
    assert accounts.run(B, FINE) is first
    assert accounts.run(B, FINE) is second
    assert accounts.settled() == [(first, None), (second, None)]


def test_a_trial_that_was_given_back_and_nobody_takes_is_not_forgotten():
    accounts = Accounts(A)
    (trial,) = accounts.add()
    assert accounts.scheduler.take(A) is trial
    accounts.scheduler.give_back(A, trial)
    accounts.scheduler.set_aside(A, "no textures", final=True)
    assert accounts.scheduler.is_hopeless()
    assert accounts.scheduler.give_up() == [trial]


def test_a_trial_that_was_cancelled_is_not_measured():
    accounts = Accounts(A)
    first, second = accounts.add(2)
    first.future.cancel()
    assert accounts.scheduler.take(A) is second


def test_servers_join_and_leave():
    accounts = Accounts(A)
    accounts.add(2)
    accounts.scheduler.update([A, B])
    assert accounts.scheduler.take(B) is not None
    accounts.scheduler.update([B])
    assert accounts.scheduler.take(A) is None
    assert accounts.scheduler.offer(A)
    assert accounts.events == [("joined", A), ("joined", B), ("lost", A), ("returned", A)]


def test_two_devices_share_the_trials():
    accounts = Accounts(A, B)
    accounts.add(20)
    rounds = 0
    while accounts.scheduler.has_work:
        rounds += 1
        for device in (A, B):
            accounts.run(device, FINE)
    assert rounds == 10
    assert accounts.scheduler.counts() == Counter({A: 10, B: 10})


Fate = Callable[[Trial, random.Random], str | None]


@pytest.mark.parametrize("seed", range(200))
def test_every_trial_ends_once_whatever_happens(seed: int):
    """Devices of every kind; candidates that fail everywhere fail, those that do not succeed."""
    rng = random.Random(seed)
    bad = {index for index in range(30) if rng.random() < 0.2}
    fates: dict[Address, Fate] = {
        A: lambda trial, rng: None,
        B: lambda trial, rng: None,
        C: lambda trial, rng: rng.choice([WRONG, CRASH, TIMEOUT, DEVICE]),
        D: lambda trial, rng: CRASH if trial.built.knobs["i"] % 3 == 0 else None,
    }
    accounts = Accounts(A, B, C, D)
    trials = accounts.add(30)
    busy: dict[Address, Trial] = {}
    ended: list[tuple[Trial, str | None]] = []
    for _ in range(5000):
        accounts.now += rng.random()
        device = rng.choice([A, B, C, D])
        if device in busy:
            trial = busy.pop(device)
            if rng.random() < 0.1:
                accounts.scheduler.give_back(device, trial)
                continue
            kind = WRONG if trial.built.knobs["i"] in bad else fates[device](trial, rng)
            accounts.scheduler.finish(device, trial, failed(kind) if kind else FINE)
        elif accounts.scheduler.offer(device) and (trial := accounts.scheduler.take(device)):
            busy[device] = trial
        ended += accounts.settled()
    assert Counter(trial for trial, _ in ended) == Counter(trials)
    for trial, error in ended:
        if trial.built.knobs["i"] in bad:
            assert error is not None
        elif error is not None:
            # Wrongly blamed only where both bad devices had it.
            assert trial.failures.keys() == {C, D}
    aside = {address for kind, address in accounts.events if kind == "set_aside"}
    assert aside <= {C, D}
