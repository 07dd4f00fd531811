"""Building and measuring for real: right, wrong, crashing and hanging candidates."""

from __future__ import annotations

import random
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tvm
from support.knob_choices import sample_knobs
from support.tunables import tasks
from tvm import te, tirx

import tvmflow.tuning.building as building
import tvmflow.tuning.measure as module
from tvmflow.devices.target import resolve
from tvmflow.tuning.building import Builder, Case
from tvmflow.tuning.measure import (
    BUILD,
    CRASH,
    DEVICE,
    TIMEOUT,
    WRONG,
    Config,
    LocalRunner,
    Session,
    TvmDevice,
    load_here,
)
from tvmflow.tuning.tasks import reference_task
from tvmflow.tuning.timing import StopRule

#: Costs are not looked at.
QUICK = Config(StopRule(rounds=1, repeats=2), min_repeat_ms=0)
#: Longer than anything here takes, on a slow machine where other tests run.
PATIENCE_S = 400.0


@pytest.fixture(scope="module")
def builder():
    made = Builder(workers=1, limit_s=PATIENCE_S)
    yield made
    made.close()


@pytest.fixture(scope="module")
def runner():
    made = LocalRunner("opencl", config=QUICK, limit_s=PATIENCE_S)
    yield made
    made.close()


def pick(task, number):
    """Some knobs of a task's space."""
    found = sample_knobs(task.family, task.shape, task.target.device, random.Random(number))
    return asdict(next(found))


@pytest.mark.opencl
@pytest.mark.parametrize("device", ["cpu", "adreno"])
def test_candidates_are_right_in_buffers_and_textures(builder, runner, device):
    found = tasks(device, "buffer" if device == "cpu" else "texture")
    for number, task in enumerate(found.values()):
        case = builder.make_case(task).result()
        for knobs in (None, pick(task, 7 * number)):
            built = builder.submit(task, knobs).result()
            assert built.error is None
            assert built.arguments == task.arguments
            measured = runner.submit(built, case).result()
            assert measured.error is None, measured.message
            assert measured.device
            assert len(measured.costs) == 2
            assert measured.cost > 0


@pytest.mark.opencl
def test_two_kernels_are_timed_in_turn(builder):
    runner = LocalRunner("opencl", limit_s=PATIENCE_S)
    try:
        task = tasks()["conv2d_1x1"]
        case = builder.make_case(task).result()
        ours, incumbent = (builder.submit(task, knobs).result() for knobs in (None, pick(task, 3)))
        alone = runner.submit(ours, case).result()
        assert (alone.error, alone.ratios) == (None, ())
        same = runner.submit(ours, case, ours).result()
        assert same.error is None, same.message
        assert len(same.ratios) == len(same.costs) >= 2
        beside = runner.submit(ours, case, incumbent).result()
        assert len(beside.ratios) == len(beside.costs) >= 2
        assert min(beside.ratios) > 0
        gone = replace(incumbent, path=Path("none.so"))
        failed = runner.submit(ours, case, gone).result()
        assert (failed.error, failed.costs) == (DEVICE, ())
    finally:
        runner.close()


@pytest.mark.opencl
def test_a_changed_device_is_looked_at_again_unless_a_rival_meets_the_change(builder, monkeypatch):
    task = tasks()["depthwise"]
    case = builder.make_case(task).result()
    built = builder.submit(task, None).result()
    config = replace(QUICK, reference=builder.submit(reference_task(task.target), None).result())
    session = Session(TvmDevice(tvm.device("opencl"), load_here), config)
    costs = iter([1.0, 2.0, 2.0, 1.0])
    looked = []

    def look(run):
        looked.append(next(costs))
        return looked[-1]

    monkeypatch.setattr(module, "statistics", SimpleNamespace(median=look))
    drifts = [session.measure(built, case).drift for _ in range(2)]
    session._since = config.reference_every
    drifts += [
        session.measure(built, case, incumbent).drift for incumbent in (None, built, None, None)
    ]
    # The last finds the device as it was.
    assert drifts == [1.0, 1.0, 2.0, 2.0, 2.0, 1.0]
    assert looked == [1.0, 2.0, 2.0, 1.0]


@pytest.mark.opencl
def test_builds_compile_kernels_for_whoever_measures(tmp_path, monkeypatch):
    # Programs that earlier tests left in PoCL's cache would be used.
    monkeypatch.setenv("POCL_CACHE_DIR", str(tmp_path))
    task = tasks()["depthwise"]
    made = Builder(workers=1, device_index=0)
    runner = LocalRunner("opencl", config=QUICK, programs=made.programs)
    try:
        case = made.make_case(task).result()
        assert made.submit(task, None).result().error is None
        (kept,) = made.programs.glob("*.program")
        stored = kept.stat().st_ino
        assert runner.submit(made.submit(task, None).result(), case).result().error is None
        # Taken from there, not compiled and stored again.
        assert [p.stat().st_ino for p in made.programs.glob("*.program")] == [stored]
    finally:
        runner.close()
        made.close()


def test_kernels_that_cannot_be_compiled_are_left_to_measuring():
    task = tasks()["depthwise"]
    made = Builder(workers=1, device_index=99)
    try:
        built = made.submit(task, None).result()
        assert built.error is None
        assert built.path.exists()
    finally:
        made.close()


@pytest.mark.opencl
def test_a_wrong_kernel_is_a_failed_trial(builder, runner, tmp_path):
    task = tasks()["depthwise"]
    built = builder.submit(task, None).result()
    right = builder.make_case(task).result()
    inputs, (result,) = right.load()
    # Wrong in one element of one channel.
    result[0, 1, 3, 2, 1] += 0.01
    arrays = {f"a{index}": array for index, array in enumerate(inputs)}
    np.savez(tmp_path / "wrong.npz", **arrays, r0=result)
    measured = runner.submit(built, Case(tmp_path / "wrong.npz")).result()
    assert measured.error == WRONG
    assert measured.costs == ()
    assert "wrong by" in measured.message
    assert runner.submit(built, right).result().error is None


@pytest.mark.opencl
def test_equal_kernels_are_one_file(builder):
    task = tasks()["conv2d_1x1"]
    first, again = (builder.submit(task, task.heuristic).result() for _ in range(2))
    other = builder.submit(task, {**task.heuristic, "tile_w": 1}).result()
    assert first.source_hash == again.source_hash != other.source_hash
    assert first.path == again.path != other.path


def test_knobs_without_a_schedule_are_no_candidate(builder, runner):
    task = tasks()["conv2d_1x1"]
    built = builder.submit(task, {**task.heuristic, "tile_w": 4096}).result()
    assert built.path is None
    measured = runner.submit(built, Case(Path("none"))).result()
    assert measured.error == BUILD
    assert "do not lead to a schedule" in measured.message


def test_a_library_that_cannot_be_loaded_is_reported(builder, runner, tmp_path):
    task = tasks()["depthwise"]
    built = builder.submit(task, None).result()
    (tmp_path / "none.so").write_bytes(b"no library")
    broken = replace(built, path=tmp_path / "none.so")
    measured = runner.submit(broken, builder.make_case(task).result()).result()
    assert measured.error == DEVICE
    assert measured.message


@pytest.fixture
def calling(builder, tmp_path):
    """Return a function that builds a candidate for this CPU, which calls the C library."""

    def make(name, *arguments):
        call = tirx.call_extern("int32", name, *arguments)
        y = te.extern(
            (4,),
            [],
            lambda _, outs: tirx.SeqStmt(
                [tirx.Evaluate(call), tirx.BufferStore(outs[0], tirx.const(1.0, "float32"), [0])]
            ),
            dtype="float32",
        )
        target = resolve("llvm")
        path = tmp_path / f"{name}.so"
        with target.tvm_target:
            function = te.create_prim_func([y]).with_attr("tirx.is_scheduled", True)
            named = function.with_attr("global_symbol", building.ENTRY)
            library = tvm.tirx.build(
                tvm.IRModule({building.ENTRY: named}), target=target.tvm_target
            )
            building.link(library, path, target)
        np.savez(tmp_path / "case.npz")
        arguments = (building.Argument((4,), "float32", ""),)
        built = building.Built("task", {}, name, path, arguments, None)
        return built, Case(tmp_path / "case.npz")

    return make


def test_a_process_that_a_kernel_crashes_or_blocks_is_replaced(calling):
    runner = LocalRunner("llvm", config=QUICK, limit_s=PATIENCE_S)
    try:
        good = calling("abs", tirx.const(-1, "int32"))
        assert runner.submit(*good).result().error is None
        crashed = runner.submit(*calling("abort")).result()
        assert (crashed.error, crashed.costs) == (CRASH, ())
        assert "SIGABRT" in crashed.message
        assert runner.submit(*good).result().error is None
        runner._limit_s = 1.0
        blocked = runner.submit(*calling("pause")).result()
        assert (blocked.error, blocked.costs) == (TIMEOUT, ())
        runner._limit_s = PATIENCE_S
        assert runner.submit(*good).result().error is None
    finally:
        runner.close()
