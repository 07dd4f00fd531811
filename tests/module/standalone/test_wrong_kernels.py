"""Kernels that a driver computes wrongly are found, named, and replaced by plain ones."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.fake_opencl import Fake, checked
from support.small_plans import ADD_IMAGES, Plan, cpu_plan, named, uniform, values
from support.standalone_api import (
    ARGUMENT,
    AUTO,
    NO_COMMAND_BUFFER,
    OPENCL,
    WRONG,
    CallError,
    Model,
)

from tvmflow.module.standalone.format import AlternativeKind, Section

PLAIN = AlternativeKind.PLAIN
W = values(64)
X = values(64)
#: Steady runs after which a device is not tested again (native/standalone/companion.h).
STEADY_RUNS = 64
COPY = """
__kernel void copy_plain(__global const float* x, __global float* y) {
  y[get_global_id(0)] = x[get_global_id(0)];
}
"""


def chain(*, alternatives: bool = True, size: int = 64) -> Plan:
    """Return a plan of ``y = 3 * (2 * x + w) + w``, with plain kernels for both functions.

    Those of the second have two launches, with a workspace between them.
    """
    plan = Plan(named("add_a") + named("add_b"))
    x, w, t, y = (plan.buffer(4 * size) for _ in range(4))
    plan.weight(w, W[:size])
    plan.launch("add_a", [x, w, t, np.float32(2)], (size,), (16,))
    plan.launch("add_b", [t, w, y, np.float32(3)], (size,), (16,))
    plan.input("x", (size,), x)
    plan.output("y", (size,), y)
    start = uniform(1, size).astype(np.float32)
    middle = 2 * start + W[:size]
    plan.tensor(0, t, middle, nodes="/conv/Conv, /conv/Relu")
    plan.tensor(1, y, 3 * middle + W[:size], stride=3, nodes="/head/Conv")
    plan.test([(1, -1, 1)], {0: 3 * middle + W[:size]})
    if alternatives:
        first = plan.program(named("add_a_plain"))
        launch = plan.launch("add_a_plain", [x, w, t, np.float32(2)], (size,), program=first)
        plan.alternative(0, 1, launch, PLAIN)
        second = plan.program(named("add_b_plain") + COPY)
        workspace = plan.buffer(4 * size)
        launch = plan.launch("copy_plain", [t, workspace], (size,), program=second)
        arguments = [workspace, w, y, np.float32(3)]
        plan.launch("add_b_plain", arguments, (size,), program=second)
        plan.alternative(1, 1, launch, PLAIN)
    return plan


def right(found: np.ndarray, x: np.ndarray = X) -> bool:
    return bool(np.allclose(found, 3 * (2 * x + W[: len(x)]) + W[: len(x)], rtol=1e-5))


@pytest.fixture(scope="module")
def library(link) -> Path:
    return link(chain())


@pytest.fixture
def fake(driver) -> Iterator[Fake]:
    with checked(driver) as fake:
        yield fake


def wait_for(condition, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("faulty", "nodes", "launches"),
    [("add_a", "/conv/Conv, /conv/Relu", 2), ("add_b", "/head/Conv", 3)],
)
def test_a_wrong_function_is_named_and_replaced(opened, fake, tmp_path, faulty, nodes, launches):
    fake.set("WRONG", f"kernel {faulty}")
    with opened(cache_folder=tmp_path) as model:
        assert not right(model(X)[0])
        assert model.report() == {}
        report = model.self_test_with()
        (found,) = report["functions"]
        assert (found["function"], found["kernel"]) == (f"fused_{faulty}", faulty)
        assert (found["nodes"], found["fault"]) == (nodes, "wrong")
        assert found["tolerance_used"] > 100
        assert (found["replaced"], found["right"]) == (True, True)
        assert (report["alternatives"], report["alternatives_used"]) == (2, 1)
        assert (report["tensors"], report["compared"]) == (2, 64)
        assert right(model(X)[0])
        assert model.describe()["kernels"] == launches
        assert not model.self_test_with()["functions"]
    # Later starts use it at once, also of another instance.
    with opened(cache_folder=tmp_path) as model:
        assert right(model(X)[0])
        assert model.describe()["kernels"] == launches
    fake.set("DRIVER", "another")
    with opened(cache_folder=tmp_path) as model:
        assert not right(model(X)[0])


def test_both_functions_are_replaced(opened, fake):
    fake.set("WRONG", "kernel add_a")
    with opened() as model:
        model.self_test_with()
        fake.set("WRONG", "kernel add_b")
        report = model.self_test_with()
        assert [f["function"] for f in report["functions"]] == ["fused_add_b"]
        assert report["alternatives_used"] == 2
        assert right(model(X)[0])


def test_right_kernels_stay(opened, fake):
    with opened() as model:
        report = model.self_test_with(runs=3)
        assert (report["functions"], report["runs"], report["different_runs"]) == ([], 3, 0)
        assert report["alternatives_used"] == 0
        assert fake.fake_count(b"clBuildProgram") == 1
        assert right(model(X)[0])


def test_plain_kernels_that_are_wrong_are_reported(opened, fake):
    fake.set("WRONG", "-an-option-that-no-program-has")
    with opened() as model:
        with pytest.raises(CallError) as caught:
            model.self_test_with()
        assert caught.value.status == WRONG
        found = model.report()["functions"]
    assert [(f["replaced"], f["right"]) for f in found] == [(True, False)] * 2


def test_without_alternatives_the_function_is_named(link, opened, fake):
    fake.set("WRONG", "kernel add_a")
    with opened(link(chain(alternatives=False))) as model:
        with pytest.raises(CallError) as caught:
            model.self_test_with()
        assert caught.value.status == WRONG
        # The second function gets a wrong input, and is no better.
        first, second = model.report()["functions"]
    assert (first["function"], first["replaced"]) == ("fused_add_a", False)
    assert second["function"] == "fused_add_b"


@pytest.mark.parametrize("faulty", ["add_a", "add_b"])
@pytest.mark.parametrize("rate", [2, 7, 10])
def test_results_that_differ_between_runs(opened, fake, faulty, rate):
    fake.set("WRONG", f"kernel {faulty}")
    fake.set("WRONG_RATE", str(rate))
    for _ in range(3):
        with opened() as model:
            report = model.self_test_with(runs=STEADY_RUNS)
            assert report["alternatives_used"] == 1
            assert report["functions"][-1]["function"] == f"fused_{faulty}"
            assert report["functions"][-1]["right"]
            assert all(right(model(X)[0]) for _ in range(rate + 1))


def test_unsteady_results_without_alternatives_are_wrong(link, opened, fake):
    path = link(chain(alternatives=False))
    fake.set("WRONG", "kernel add_b")
    fake.set("WRONG_RATE", "9")
    with opened(path) as model:
        with pytest.raises(CallError, match=r"differ in 1 of \d+ runs") as caught:
            # The first runs are right.
            model.self_test_with(runs=STEADY_RUNS)
        assert caught.value.status == WRONG
        assert model.report()["functions"][0]["fault"] == "differs"


def test_a_recording_that_is_replayed_wrong(opened, fake, tmp_path):
    fake.set("EXTENSIONS", "cl_khr_command_buffer")
    fake.set("WRONG", "replay")
    with opened(cache_folder=tmp_path) as model:
        assert not right(model(X)[0])
        report = model.self_test_with()
        assert (report["recording_wrong"], report["functions"]) == (True, [])
        assert right(model(X)[0])
        assert model.describe()["recording"] == ""
    with opened(cache_folder=tmp_path) as model:
        assert right(model(X)[0])


def test_a_second_instance_runs_at_the_same_time(opened, fake):
    with opened() as model:
        before = fake.fake_count(b"clCreateContext")
        report = model.self_test_with(runs=20, flags=1)
        assert fake.fake_count(b"clCreateContext") == before + 1
        assert (report["runs"], report["different_runs"]) == (20, 0)
        assert right(model(X)[0])


def test_budget_and_pause(opened, fake):
    with opened() as model:
        begin = time.monotonic()
        assert model.self_test_with(runs=2, pause_ms=300)["runs"] == 2
        assert time.monotonic() - begin > 0.29
        begin = time.monotonic()
        assert model.self_test_with(runs=4_000_000, budget_ms=50)["runs"] > 0
        assert time.monotonic() - begin < 10


def test_options_of_another_size_are_refused(opened, fake):
    with opened() as model:
        with pytest.raises(CallError, match="struct_size is 3, expected") as caught:
            model.self_test_with(struct_size=3)
        assert caught.value.status == ARGUMENT
        assert right(model(X)[0])


def test_memory_of_plain_kernels_is_allocated_when_they_are_used(opened, fake):
    fake.set("WRONG", "kernel add_b")
    with opened() as model:
        before = fake.fake_memory()
        model.self_test_with()
        assert fake.fake_memory() == before + 256


def test_faults_of_the_table_use_plain_kernels(opened, fake):
    table = [{"id": "own", "fault": "none", "device": "Fake GPU",
              "actions": {"use": ["safe_kernels"]}}]  # fmt: skip
    with opened(drivers=json.dumps(table)) as model:
        assert right(model(X)[0])
        assert model.describe()["kernels"] == 3
        fake.set("WRONG", "kernel add_a_plain")
        with pytest.raises(CallError):
            model.self_test_with()


def test_kernels_are_measured_by_their_names(opened, fake):
    fake.set("WRONG", "kernel add_b")
    with opened(flags=1) as model:
        model.self_test_with()
        model.set_input(0, X)
        names = [measured.name.decode() for measured in model.profile()]
    assert names == ["add_a", "copy_plain", "add_b_plain"]


@pytest.mark.parametrize("flags", [0, NO_COMMAND_BUFFER])
def test_memory_of_the_application_stays_bound(library, driver, fake, flags):
    """An output's memory is also that of the alternative."""
    from support.fake_opencl import Application

    fake.set("EXTENSIONS", "cl_khr_command_buffer")
    fake.set("WRONG", "kernel add_b")
    application = Application(fake)
    options = {"opencl_library": driver, "backend": OPENCL, "flags": flags}
    memory = application.buffer()
    with Model(library, **application.options, **options) as model:
        model.call("use_output", 0, memory)
        model.self_test_with()
        assert right(model(X)[0])
        model.call("use_output", 0, None)
        assert right(model(X)[0])
    fake.clReleaseMemObject(memory)
    application.close()


def test_images_are_compared_in_their_part_of_the_allocation(link, opened, fake):
    """Tensors share an image that is larger than they are."""
    plan = Plan(ADD_IMAGES)
    x, w, y = (plan.image(5, 3, 1) for _ in range(3))
    weight = np.arange(60, dtype=np.float32)
    plan.weight(w, weight)
    plan.launch("add_i", [x, w, y, np.float32(2)], (5, 3, 1))
    parts = [(0, (0, 0, 0), (5, 3, 1))]
    plan.interface(Section.INPUTS, "x", (60,), x, regions=parts)
    plan.interface(Section.OUTPUTS, "y", (60,), y, regions=parts)
    whole = 2 * uniform(1, 60) + weight
    corner = whole.reshape(3, 5, 4)[:2, :3].astype(np.float32)
    corner[1, 2, 3] = np.nan  # it is not compared
    plan.tensor(0, y, corner, stride=1, size=(3, 2))
    plan.test([(1, -1, 1)], {0: whole})
    with opened(link(plan)) as model:
        assert not model.self_test_with()["functions"]
        fake.set("WRONG", "kernel add_i")
        with pytest.raises(CallError):
            model.self_test_with()
        assert model.report()["functions"][0]["function"] == "fused_add_i"


def test_all_shapes_are_tested(link, opened, fake):
    """A function that both shapes call is replaced in each."""
    plan = Plan(named("add_a") + named("add_b"))
    x, w, y = (plan.buffer(256) for _ in range(3))
    plan.weight(w, W)
    sizes = {64: "add_a", 32: "add_b"}
    for size, name in sizes.items():
        plan.launch(name, [x, w, y, np.float32(2)], (size,), (16,))
        plan.input("x", (size,), x)
        plan.output("y", (size,), y)
    for number, size in enumerate(sizes):
        result = 2 * uniform(1, size) + W[:size]
        plan.test([(1, -1, 1)], {number: result})
        plan.tensor(number, y, result.astype(np.float32))
    program = plan.program(named("add_plain"))
    for number, size in enumerate(sizes):
        launch = plan.launch("add_plain", [x, w, y, np.float32(2)], (size,), program=program)
        plan.alternative(number, 1, launch, PLAIN)
    plan.rows[Section.SHAPES] += [{"first_launch": n, "launches": 1} for n in (0, 1)]
    fake.set("WRONG", "kernel add_b")
    with opened(link(plan)) as model:
        report = model.self_test_with(runs=2)
        assert [f["function"] for f in report["functions"]] == ["fused_add_b"]
        assert (report["runs"], report["alternatives_used"]) == (4, 1)
        model.call("choose_shape", 1)
        np.testing.assert_allclose(model(X[:32])[0], 2 * X[:32] + W[:32], rtol=1e-5)


# -- TVMFLOW_AUTO -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def both(link) -> Path:
    """Return a library that has kernels for the CPU, too."""
    return link(chain(), cpu=cpu_plan(w=W))


def test_the_first_start_replaces_what_is_wrong(opened, fake, tmp_path):
    fake.set("WRONG", "kernel add_a")
    for _ in range(2):
        with opened(cache_folder=tmp_path, backend=AUTO) as model:
            assert right(model(X)[0])
            assert model.describe()["backend"] == "opencl"


def test_a_device_that_stays_wrong_is_not_used(both, opened, fake, tmp_path):
    fake.set("WRONG", "-an-option-that-no-program-has")
    for _ in range(2):
        with opened(both, cache_folder=tmp_path, backend=AUTO) as model:
            assert model.describe()["backend"] == "cpu"


def test_a_device_that_stays_wrong_is_an_error_without_the_cpu(opened, fake, tmp_path):
    fake.set("WRONG", "-an-option-that-no-program-has")
    for _ in range(2):
        with pytest.raises(CallError) as caught:
            opened(cache_folder=tmp_path, backend=AUTO)
        assert caught.value.status == WRONG


def test_unsteady_kernels_are_found_while_the_application_runs(opened, fake, tmp_path):
    with opened(cache_folder=tmp_path, backend=AUTO) as model:
        fake.set("WRONG", "kernel add_b")
        fake.set("WRONG_RATE", "11")

        def replaced() -> bool:
            model.set_input(0, X)
            model.call("run")
            return model.describe()["kernels"] == 3

        wait_for(replaced)
        assert all(right(model(X)[0]) for _ in range(20))
    with opened(cache_folder=tmp_path, backend=AUTO) as model:
        assert model.describe()["kernels"] == 3
        assert all(right(model(X)[0]) for _ in range(20))


def test_runs_are_repeated_until_there_were_enough(opened, fake, tmp_path):
    def contexts() -> int:
        return int(fake.fake_count(b"clCreateContext"))

    def start(expected: int) -> None:
        before = contexts()
        with opened(cache_folder=tmp_path, backend=AUTO):
            wait_for(lambda: contexts() - before >= expected)
            time.sleep(0.5)
        assert contexts() - before == expected

    start(2)
    start(1)


@pytest.mark.parametrize("options", [{"flags": 32}, {"cache_folder": None}])
def test_no_second_instance_where_none_is_wanted(opened, fake, tmp_path, options):
    before = fake.fake_count(b"clCreateContext")
    with opened(**{"cache_folder": tmp_path, "backend": AUTO, **options}) as model:
        assert right(model(X)[0])
        time.sleep(0.2)
    assert fake.fake_count(b"clCreateContext") == before + 1


def test_instances_end_while_they_are_tested(opened, fake, tmp_path):
    for number in range(20):
        with opened(cache_folder=tmp_path / str(number % 3), backend=AUTO) as model:
            if number % 2:
                assert right(model(X)[0])


def test_many_start_at_once(opened, fake, tmp_path):
    fake.set("WRONG", "kernel add_a")
    results = []

    def start() -> None:
        with opened(cache_folder=tmp_path, backend=AUTO) as model:
            results.append(right(model(X)[0]))

    threads = [threading.Thread(target=start) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 6
