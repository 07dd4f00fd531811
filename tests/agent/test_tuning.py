"""Tuning on an agent of this machine: the results are those of a runner with TVM."""

from __future__ import annotations

import os
import random
import signal
import time
from dataclasses import asdict, replace

import numpy as np
import onnx
import pytest
from support.knob_choices import sample_knobs
from support.onnx_models import model_of
from support.tunables import model, tasks
from typer.testing import CliRunner

from tvmflow.agent.connection import Connection
from tvmflow.agent.frames import Code
from tvmflow.agent.transports import Local
from tvmflow.cli.app import app
from tvmflow.compiler.options import CompileOptions
from tvmflow.errors import AgentError, TargetError
from tvmflow.journal.journal import Journal
from tvmflow.tuning.building import Argument, Builder, Built, Case
from tvmflow.tuning.candidate_kernels import CandidateKernels, CandidateLaunch
from tvmflow.tuning.measure import (
    BUILD,
    CRASH,
    DEVICE,
    TIMEOUT,
    WRONG,
    Config,
    LocalRunner,
)
from tvmflow.tuning.remote import RemoteDevices, RemoteKernels, RemoteRunner
from tvmflow.tuning.session import Network, Options, tune
from tvmflow.tuning.tasks import reference_task
from tvmflow.tuning.timing import StopRule
from tvmflow.tuning.tuner import Budget

pytestmark = pytest.mark.opencl

#: Costs are not looked at.
QUICK = Config(StopRule(rounds=1, repeats=2), min_repeat_ms=0)
#: Longer than anything here takes, on a slow machine where other tests run.
PATIENCE_S = 400.0


@pytest.fixture(scope="module")
def builder():
    made = Builder(workers=1, limit_s=PATIENCE_S, as_kernels=True)
    yield made
    made.close()


@pytest.fixture
def run(local):
    """Return a function that makes a runner on the agent."""
    runners = []

    def start(**options):
        options = {"limit_s": PATIENCE_S, "config": QUICK, **options}
        runners.append(RemoteRunner(local, **options))
        return runners[-1]

    yield start
    for runner in runners:
        runner.close()


def pick(task, number):
    """Return some knobs of a task's space."""
    found = sample_knobs(task.family, task.shape, task.target.device, random.Random(number))
    return asdict(next(found))


def sum_task():
    """Return a task whose kernels pass partial sums in a workspace."""
    nodes = "y = ReduceSum<keepdims = 0>(x, a)"
    made = model_of(nodes, {"x": (2, 90000)}, {"y": None}, {"a": np.array([1])}, opset=18)
    (task,) = Network(made, CompileOptions(device="cpu")).tasks()
    return task


def written(folder, body, value=0.0, name="candidate", workspaces=()):
    """Return a handwritten candidate that fills four numbers, and its case."""
    source = f"__kernel void {name}(__global float* y) {{ int i = get_global_id(0); {body} }}\n"
    kernels = CandidateKernels(
        source, (CandidateLaunch("candidate", (0,), (4,), (4,)),), workspaces
    )
    path = kernels.write(folder)
    np.savez(folder / "case.npz", r0=np.full(4, value, np.float32))
    argument = Argument((4,), "float32", "")
    return Built("task", {}, path.stem, path, (argument,), None), Case(folder / "case.npz")


# -- candidates ------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["cpu", "adreno"])
def test_candidates_are_right_in_buffers_and_textures(builder, run, device):
    runner = run()
    found = tasks(device, "buffer" if device == "cpu" else "texture")
    for number, task in enumerate(found.values()):
        case = builder.make_case(task).result()
        for knobs in (None, pick(task, 7 * number)):
            built = builder.submit(task, knobs).result()
            assert built.error is None
            assert built.arguments == task.arguments
            measured = runner.submit(built, case).result()
            assert measured.error is None, measured.message
            assert len(measured.costs) == 2
            assert measured.cost > 0
    assert runner.standings()[0].trials == 2 * len(found)


def test_kernels_pass_values_in_workspaces(builder, run):
    task = sum_task()
    built = builder.submit(task, None).result()
    kernels = CandidateKernels.read(built.path)
    assert len(kernels.launches) == 2
    assert len(kernels.workspaces) == 1
    measured = run().submit(built, builder.make_case(task).result()).result()
    assert measured.error is None, measured.message


@pytest.mark.parametrize("storage", ["buffer", "texture"])
def test_tensors_are_stored_as_half(builder, run, storage):
    options = CompileOptions(device="adreno", storage=storage, dtype="fp16")
    # The others compute in half, which PoCL does not.
    found = [t for t in Network(model(), options).tasks() if t.name in ("pack", "unpack")]
    assert len(found) == 2
    runner = run()
    for task in found:
        built = builder.submit(task, None).result()
        assert any("half" in argument.scope for argument in built.arguments)
        measured = runner.submit(built, builder.make_case(task).result()).result()
        assert measured.error is None, measured.message


@pytest.mark.slow
def test_both_runners_accept_the_same_candidates(builder, run):
    with_host = Builder(workers=1, limit_s=PATIENCE_S)
    here, there = LocalRunner("opencl", config=QUICK, limit_s=PATIENCE_S), run()
    try:
        for task in (tasks("adreno", "texture")["conv2d_1x1"], sum_task()):
            case = builder.make_case(task).result()
            for knobs in (None, pick(task, 5)):
                ours, theirs = (b.submit(task, knobs).result() for b in (builder, with_host))
                remote = there.submit(ours, case).result()
                assert (remote.error, here.submit(theirs, case).result().error) == (None, None)
            assert (remote.device, remote.driver) == there_is(here)
    finally:
        here.close()
        with_host.close()


def there_is(runner):
    """Return name and driver of a runner's device."""
    (device,) = runner.devices()
    return device.name, device.driver


def test_two_kernels_are_timed_in_turn(builder, run):
    task = tasks()["conv2d_1x1"]
    case = builder.make_case(task).result()
    ours, incumbent = (builder.submit(task, knobs).result() for knobs in (None, pick(task, 3)))
    reference = builder.submit(reference_task(task.target), None).result()
    runner = run(config=Config(reference=reference))
    alone = runner.submit(ours, case).result()
    assert (alone.error, alone.ratios, alone.drift) == (None, (), 1.0)
    both = runner.submit(ours, case, incumbent).result()
    assert len(both.ratios) == len(both.costs) >= 2
    assert min(both.ratios) > 0


def test_equal_kernels_are_one_file(builder):
    task = tasks()["conv2d_1x1"]
    first, again = (builder.submit(task, task.heuristic).result() for _ in range(2))
    other = builder.submit(task, {**task.heuristic, "tile_w": 1}).result()
    assert first.source_hash == again.source_hash != other.source_hash
    assert first.path == again.path != other.path
    assert first.path.suffix == ".kernels"


# -- failures --------------------------------------------------------------------------------------


def test_a_wrong_kernel_is_a_failed_trial(run, tmp_path):
    runner = run()
    wrong = runner.submit(*written(tmp_path, "y[i] = 1;", 2)).result()
    assert (wrong.error, wrong.costs) == (WRONG, ())
    # A kernel that writes nothing finds no results of an earlier one.
    assert runner.submit(*written(tmp_path, "y[i] = 2;", 2)).result().error is None
    assert runner.submit(*written(tmp_path, "", 2)).result().error == WRONG
    missing = Built("task", {}, "", None, (), "no schedule")
    assert runner.submit(missing, Case(tmp_path)).result().error == BUILD


def test_source_that_the_driver_refuses_does_not_end_the_session(run, tmp_path):
    runner = run()
    assert runner.submit(*written(tmp_path, "y[i] = 0;")).result().error is None
    session = runner._session
    refused = runner.submit(*written(tmp_path, "y[i] = b;")).result()
    assert refused.error == DEVICE
    assert "Building a program failed" in refused.message
    assert runner._session is session
    refused = runner.submit(*written(tmp_path, "y[i] = 0;", name="other")).result()
    assert "CL_INVALID_KERNEL_NAME" in refused.message
    assert runner._session is not session
    assert runner.submit(*written(tmp_path, "y[i] = 0;")).result().error is None


def test_sessions_that_crash_or_hang_cost_one_trial(run, tmp_path):
    runner = run()
    good = written(tmp_path, "y[i] = 0;")
    assert runner.submit(*good).result().error is None
    crash = "y[i] = *(__global volatile float*)(8 + 0 * i);"
    crashed = runner.submit(*written(tmp_path, crash)).result()
    assert (crashed.error, crashed.costs) == (CRASH, ())
    assert "SIGSEGV" in crashed.message
    assert runner.submit(*good).result().error is None
    runner._limit_s = 2.0
    hanging = written(tmp_path, "y[i] = 1; while (y[i] == 1) y[3 - i] = 1;")
    began = time.monotonic()
    hung = runner.submit(*hanging).result()
    assert (hung.error, hung.costs) == (TIMEOUT, ())
    assert time.monotonic() - began < 20
    assert runner.submit(*good).result().error is None


def test_a_candidate_that_needs_too_much_memory_is_a_failed_trial(run, tmp_path):
    runner = run()
    large = written(tmp_path, "y[i] = 0;", workspaces=(1 << 60,))
    assert runner.submit(*large).result().error == DEVICE
    assert runner.submit(*written(tmp_path, "y[i] = 0;")).result().error is None


def test_a_session_that_ended_between_requests_costs_no_trial(run, local, tmp_path):
    runner = run()
    good = written(tmp_path, "y[i] = 0;")
    assert runner.submit(*good).result().error is None
    local.reset()
    assert runner.submit(*good).result().error is None


def test_broken_connections_are_opened_again(run, local, tmp_path):
    events = []
    runner = run(listener=events.append)
    good = written(tmp_path, "y[i] = 0;")
    assert runner.submit(*good).result().error is None
    os.kill(local.connection.process_id, signal.SIGKILL)
    assert runner.submit(*good).result(PATIENCE_S).error is None
    assert [event.kind for event in events] == ["lost", "returned"]
    assert "SIGKILL" in events[0].details["reason"]


def test_a_candidate_that_breaks_each_connection_has_failed(run, tmp_path, monkeypatch):
    """For example, its kernel makes the phone restart."""
    events = []
    runner = run(listener=events.append)
    good = written(tmp_path, "y[i] = 0;")
    run_once, killed = RemoteKernels.run, []

    def restart(kernels, *arguments):
        killed.append(kernels.remote.connection.process_id)
        os.kill(killed[-1], signal.SIGKILL)
        run_once(kernels, *arguments)

    monkeypatch.setattr(RemoteKernels, "run", restart)
    crashed = runner.submit(*good).result(PATIENCE_S)
    assert (crashed.error, crashed.costs, len(set(killed))) == (CRASH, (), 3)
    assert [event.kind for event in events] == ["lost", "returned"] * 3
    monkeypatch.setattr(RemoteKernels, "run", run_once)
    assert runner.submit(*good).result(PATIENCE_S).error is None


def test_a_full_folder_is_emptied_by_a_new_connection(run, tmp_path, monkeypatch):
    runner = run()
    put, refused = Connection.put, []

    def refuse_once(connection, content):
        if not refused:
            refused.append(connection)
            raise AgentError("The folder is full.", code=Code.STORE)
        return put(connection, content)

    monkeypatch.setattr(Connection, "put", refuse_once)
    assert runner.submit(*written(tmp_path, "y[i] = 0;")).result(PATIENCE_S).error is None
    assert runner._remote.connection is not refused[0]


def test_a_device_that_stays_away_ends_the_run(run, local, tmp_path, monkeypatch):
    runner = run(patience_s=0.0)
    good = written(tmp_path, "y[i] = 0;")
    assert runner.submit(*good).result().error is None

    def refuse(transport):
        raise AgentError("No phone is attached.")

    monkeypatch.setattr(Local, "start", refuse)
    os.kill(local.connection.process_id, signal.SIGKILL)
    futures = [runner.submit(*good) for _ in range(2)]
    for future in futures:
        with pytest.raises(AgentError, match="No phone is attached"):
            future.result(PATIENCE_S)


def test_another_device_in_its_place_ends_the_run(run, local, tmp_path):
    runner = run()
    runner._device = replace(runner._device, driver="another")
    os.kill(local.connection.process_id, signal.SIGKILL)
    with pytest.raises(AgentError, match="'another' was expected"):
        runner.submit(*written(tmp_path, "y[i] = 0;")).result(PATIENCE_S)


@pytest.mark.slow
def test_closing_cancels_the_trial(run, tmp_path):
    runner = run()
    hanging = written(tmp_path, "y[i] = 1; while (y[i] == 1) y[3 - i] = 1;")
    futures = [runner.submit(*hanging) for _ in range(2)]
    while not futures[0].running():
        time.sleep(0.01)
    began = time.monotonic()
    runner.close()
    assert time.monotonic() - began < 30
    assert futures[0].done()
    assert futures[1].cancelled()


# -- whole sessions --------------------------------------------------------------------------------


def test_tuning_needs_no_linker_and_continues(local, tmp_path, monkeypatch):
    def refuse(host):
        raise AssertionError(host)

    monkeypatch.setattr("tvmflow.tuning.session.check_linker", refuse)
    monkeypatch.setattr(local.__class__, "sensors", lambda self: {"temperatures": {"gpu": 41.5}})
    network = Network(model(), CompileOptions(device="cpu", host="android-arm64"))
    how = Options(Budget(3), "random", workers=1, measuring=QUICK)
    found = tune(network, tmp_path / "phone.journal", how, farm=RemoteDevices(local))
    assert [p.failures for p in found.progress] == [0] * len(found.progress)
    assert found.measured_on[0].rpc_key == local.name
    with Journal.open(tmp_path / "phone.journal") as journal:
        trials = list(journal.trials())
    (device,) = {trial.device for trial in trials}
    (there,) = (info for info in local.opencl_devices()[:1])
    assert (device.rpc_key, device.name, device.driver) == (local.name, there.name, there.driver)
    assert device.facts["version"] == there.version
    assert device.facts["release"] == local.facts["release"]
    heat = {"celsius_before": 41.5, "celsius_after": 41.5}
    assert any(dict(trial.provenance) == heat for trial in trials)


def test_what_agents_cannot_measure_is_refused(local):
    devices = RemoteDevices(local)
    with pytest.raises(TargetError, match="needs a preset"):
        devices.check("auto", local.host)
    with pytest.raises(TargetError, match="asked for the target llvm"):
        devices.runner("llvm", QUICK, print)


@pytest.mark.slow
def test_the_command_tunes_for_what_the_driver_reports(local, tmp_path, monkeypatch):
    name = local.name
    local.close()
    monkeypatch.setenv("TVMFLOW_CACHE_DIR", str(tmp_path / "cache"))
    path, journal = tmp_path / "net.onnx", tmp_path / "net.journal"
    onnx.save(model(), path)
    command = ["tune", path, "--journal", journal, "--on", "local", "--workers", 1]
    done = CliRunner().invoke(app, list(map(str, [*command, "--trials", 1])))
    assert done.exit_code == 0, done.output
    with Journal.open(journal) as found:
        assert all(trial.costs for trial in found.trials())
        assert {trial.device.rpc_key for trial in found.trials()} == {name}
    both = CliRunner().invoke(app, list(map(str, [*command, "--key", "a"])))
    assert both.exit_code == 2
    assert "do not go with --on" in both.output
