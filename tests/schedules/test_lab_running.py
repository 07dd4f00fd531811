"""Checks and timing of the steps of a lab."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

import pytest
import tvm

from tvmflow.devices.target import resolve
from tvmflow.errors import InputError, VerificationError
from tvmflow.explain import lab as running
from tvmflow.explain.lab import run_lab
from tvmflow.explain.profiling import ceilings
from tvmflow.explain.profiling.record import Ceilings
from tvmflow.runtime import timing
from tvmflow.schedules.lab import LABS, convolution


@pytest.mark.usefixtures("known_ceilings")
@pytest.mark.parametrize("name", ["relu", "relu_int8"])
def test_a_step_without_a_result_is_reported(monkeypatch, name):
    """The memory still has the result of the previous step, which must not be accepted."""
    build, built = running._built, []

    def second_does_nothing(*arguments):
        built.append(build(*arguments))
        return built[0] if len(built) == 1 else lambda: None

    monkeypatch.setattr(running, "_built", second_does_nothing)
    with pytest.raises(VerificationError, match="The step vectorised of the lab"):
        run_lab(name, size=7, seconds=1e-3)


@pytest.mark.usefixtures("known_ceilings")
@pytest.mark.parametrize(
    ("name", "target", "device"),
    [
        ("matmul", "llvm", "cpu"),
        ("softmax", "llvm", "cpu"),
        ("matmul_int8", "llvm", "cpu"),
        ("conv3x3", "llvm", "cpu"),
        *(
            pytest.param(name, "opencl", device, marks=pytest.mark.opencl)
            for name, device in (("dot", "cpu"), ("relu_int8", "adreno"), ("conv3x3", "adreno"))
        ),
    ],
)
def test_each_sample_of_a_batch_is_computed(monkeypatch, name, target, device):
    """Each sample is compared with its own reference: a step that differs in one raises."""
    monkeypatch.setitem(LABS, "conv3x3", convolution.lab(3, 5))
    last, references = LABS[name].steps(resolve(target, device).device)[-1].name, []
    check = running._checked

    def recorded(lab, step, what, result, reference):
        references.append(reference.tobytes())
        return check(lab, step, what, result, reference)

    monkeypatch.setattr(running, "_checked", recorded)
    options = {"size": 5, "target": target, "device": device, "steps": [last], "seconds": 1e-3}
    one, three = run_lab(name, **options), run_lab(name, batch=3, **options)
    assert len(set(references)) == 3
    assert references[0] == references[1]
    assert (one.batch, three.batch) == (1, 3)
    assert (three.operations, three.bytes) == (3 * one.operations, 3 * one.bytes)


@pytest.mark.usefixtures("known_ceilings")
def test_a_sample_that_is_left_out_is_reported(monkeypatch):
    build = running._built

    def without_last(function, target, device, samples):
        return build(function, target, device, samples[:-1])

    monkeypatch.setattr(running, "_built", without_last)
    with pytest.raises(VerificationError, match="with 2 rows of 1,024 numbers, sample 3 of 3,"):
        run_lab("relu", size=2, batch=3, steps=["naive"], seconds=1e-3)


def test_batches_that_are_not_possible_are_refused(monkeypatch):
    with pytest.raises(InputError, match="a batch of 0 samples; expected at least 1"):
        run_lab("relu", batch=0)
    monkeypatch.setattr(running, "host_bytes", lambda: 1 << 20)
    # Two tensors of 4 KB are copied ten times for 100 samples.
    with pytest.raises(InputError, match=r"needs 8\.2 MB, copies included; .* has 1\.0 MB"):
        run_lab("relu", size=1, batch=100)


@pytest.fixture
def rising(monkeypatch, tmp_path):
    """Patch measured ceilings to be cached, and to rise with each measurement."""
    monkeypatch.delenv("TVMFLOW_CACHE", raising=False)
    monkeypatch.setenv("TVMFLOW_CACHE_DIR", str(tmp_path))
    gflops = iter([1e-6, 1e5, 2e5])
    monkeypatch.setattr(ceilings._Device, "measure", lambda _: Ceilings(10, next(gflops), 0.001))


def test_ceilings_are_measured_again_where_a_step_exceeds_them(rising):
    def measured(**options):
        result = run_lab("matmul", size=40, steps=["packed"], seconds=1e-3, **options)
        return result.ceilings.fp32_gflops

    # The first ceilings are of a busy machine; then there are cached ones.
    assert [measured(), measured()] == [1e5, 1e5]
    assert measured(fresh_ceilings=True) == 2e5


@pytest.mark.parametrize(
    ("said", "number"),
    [({}, "3"), ({"TVM_NUM_THREADS": "2"}, "2"), ({"OMP_NUM_THREADS": "1"}, None)],
)
def test_threads_default_to_the_number_of_cores(monkeypatch, said, number):
    monkeypatch.setattr(running.os, "environ", environment := dict(said))
    running.prepare_threads(3)
    assert environment.get("TVM_NUM_THREADS") == number
    assert environment["TVM_THREAD_POOL_SPIN_COUNT"] == "0"


def test_workers_have_the_requested_number_only_while_the_lab_runs(monkeypatch):
    before, during = tvm.runtime.num_threads(), []
    measure = running.in_turn

    def counted(*arguments):
        during.append(tvm.runtime.num_threads())
        return measure(*arguments)

    monkeypatch.setattr(running, "in_turn", counted)
    monkeypatch.setattr(running, "_peaks", lambda *_, **__: None)
    cores = os.sched_getaffinity(0)
    result = run_lab("add", size=2, steps=["parallel"], workers=1, seconds=1e-3)
    assert os.sched_getaffinity(0) == cores
    assert (during, result.workers) == ([1], 1)
    assert tvm.runtime.num_threads() == before


@pytest.mark.parametrize(
    ("workers", "target", "message"),
    [
        (0, "llvm", "asked for 0 workers; this machine has 1 to"),
        (100_000, "llvm", "asked for 100000 workers"),
        (1, "opencl", "only the target llvm has threads to choose"),
    ],
)
def test_workers_that_are_not_possible_are_refused(workers, target, message):
    with pytest.raises(InputError, match=message):
        run_lab("add", size=2, workers=workers, target=target)


# -- times ------------------------------------------------------------------------------------


@dataclass
class Clock:
    """A clock that advances when something sleeps or is called, with the API of ``time``."""

    now: float = 0.0
    cpu: float = 0.0
    #: Time until which one thread of this process is awake.
    awake_until: float = 0.0
    called: list[str] = field(default_factory=list)

    def perf_counter(self):
        return self.now

    def process_time(self):
        return self.cpu

    def sleep(self, seconds):
        self.cpu += max(0.0, min(seconds, self.awake_until - self.now))
        self.now += seconds

    def call(self, name, seconds, awake=0.0):
        def run():
            self.called.append(name)
            self.now += seconds
            self.awake_until = self.now + awake

        return run


@pytest.fixture
def clock(monkeypatch):
    monkeypatch.setattr(timing, "time", made := Clock())
    return made


def test_short_calls_are_timed_some_in_a_row_behind_one_that_is_not(clock):
    times = timing.in_turn({"a": clock.call("a", 0.01), "b": clock.call("b", 0.02)}, 2.0)
    assert "".join(clock.called) == "aaaabbbb" * 10
    assert times["a"].median_ms == pytest.approx(10)
    assert (times["a"].runs, times["b"].runs) == (30, 30)


def test_long_calls_are_made_no_more_than_needed(clock):
    times = timing.in_turn({"a": clock.call("a", 4.0), "b": clock.call("b", 0.3)}, 1.0)
    assert "".join(clock.called) == "abbbb"
    assert (times["a"].runs, times["b"].runs) == (1, 4)


def test_each_call_is_timed_without_time_for_it(clock):
    assert timing.in_turn({"a": clock.call("a", 0.01)}, 0.0)["a"].runs == 3


def test_threads_that_are_awake_are_waited_for(clock):
    # Only pauses between rounds count: before the first round nobody is awake.
    timing.in_turn({"a": clock.call("a", 0.01), "b": clock.call("b", 0.01, awake=0.1)}, 0.08)
    rounds = len(clock.called) // 8
    assert rounds == 3
    assert clock.now == pytest.approx(rounds * 0.08 + (rounds - 1) * 0.105 + 0.005)


def test_threads_that_stay_awake_are_not_waited_for_forever(clock):
    clock.awake_until = 1e9
    timing.wait_for_sleep()
    assert clock.now == pytest.approx(0.4)
