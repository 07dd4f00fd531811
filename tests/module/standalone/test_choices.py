"""Choices of kernels are timed in the application, and the faster ones are used."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.fake_opencl import Fake, checked, compile_c
from support.small_plans import Plan, add_plan, named, uniform, values
from support.standalone_api import (
    ARGUMENT,
    BUSY,
    DEVICE,
    UNSUPPORTED,
    CallError,
    Model,
)

from tvmflow.module.standalone.format import AlternativeKind

PLAIN, CHOICE = AlternativeKind
SIZE = 64
W, X = values(SIZE), values(SIZE)
PROGRESS = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_double)
NO_PROGRESS = PROGRESS()


def chain(w_values: np.ndarray = W, comment: str = "") -> Plan:
    """Return a plan of ``y = 3 * (2 * x + w) + w`` in two calls, with alternatives.

    The first call has two choices and a plain kernel, both calls together have a choice, which
    reads another weight.  ``comment`` makes other kernels of it.
    """
    plan = Plan(comment + named("add_a") + named("add_b"))
    x, w, t, y, w4 = (plan.buffer(4 * SIZE) for _ in range(5))
    plan.weight(w, w_values)
    plan.weight(w4, 4 * w_values, name="four")
    plan.launch("add_a", [x, w, t, np.float32(2)], (SIZE,), (16,))
    plan.launch("add_b", [t, w, y, np.float32(3)], (SIZE,), (16,))
    plan.input("x", (SIZE,), x)
    plan.output("y", (SIZE,), y)
    start = uniform(1, SIZE).astype(np.float32)
    middle = 2 * start + w_values
    plan.tensor(0, t, middle)
    plan.tensor(1, y, 3 * middle + w_values)
    plan.test([(1, -1, 1)], {0: 3 * middle + w_values})
    names = ("add_both", "add_a0", "add_a1", "add_plain")
    program = plan.program("".join(map(named, names)))

    def launch(name: str, arguments: Sequence[Any]) -> int:
        return plan.launch(name, arguments, (SIZE,), (16,), program=program)

    plan.alternative(0, 2, launch("add_both", [x, w4, y, np.float32(6)]), CHOICE, calls=2)
    arguments = [x, w, t, np.float32(2)]
    plan.alternative(0, 1, launch("add_a0", arguments), CHOICE)
    plan.alternative(0, 1, launch("add_a1", arguments), CHOICE)
    plan.alternative(0, 1, launch("add_plain", arguments), PLAIN)
    return plan


def right(found: np.ndarray) -> bool:
    return bool(np.allclose(found, 3 * (2 * X + W) + W, rtol=1e-5))


@pytest.fixture(scope="module")
def library(link) -> Path:
    return link(chain())


@pytest.fixture
def fake(driver) -> Iterator[Fake]:
    with checked(driver) as fake:
        yield fake


def begin(model: Model, budget_ms: int = 10_000, progress: Any = NO_PROGRESS) -> None:
    model.call("tune", ctypes.c_uint32(budget_ms), progress, None)


def tune(model: Model, budget_ms: int = 10_000, progress: Any = NO_PROGRESS) -> dict[str, Any]:
    begin(model, budget_ms, progress)
    model.call("tune_wait")
    return json.loads(model.library.tvmflow_tune_report(model.handle))


def standings(report: dict[str, Any]) -> dict[int, str]:
    return {time["alternative"]: time["standing"] for time in report["times"]}


@pytest.mark.parametrize(
    ("slow", "expected", "launches"),
    [
        ("add_a=3000,add_a0=2900,add_a1=1000,add_both=5000", ["slower", "slower", "used"], 2),
        ("add_a=1000,add_a0=3000,add_a1=3000,add_both=5000", ["slower"] * 3, 2),
        ("add_a=3000,add_a0=2000,add_a1=1000,add_both=300", ["used", "slower", "used"], 1),
    ],
    ids=["a choice", "none", "one for two calls"],
)
def test_the_fastest_is_used(opened, fake, tmp_path, slow, expected, launches):
    fake.set("SLOW", slow)
    shares: list[float] = []
    with opened(cache_folder=tmp_path) as model:
        report = tune(model, progress=PROGRESS(lambda _, done: shares.append(done)))
        assert standings(report) == dict(enumerate(expected))
        assert report["end"] == "tuned"
        assert (report["choices"], report["untried"]) == (3, 0)
        assert report["used"] == expected.count("used")
        assert shares == sorted(shares)
        assert shares[-1] == 1
        before, after = report["network_us"]
        assert after < 0.9 * before if "used" in expected else (before, after) == (0, 0)
        assert right(model(X)[0])
        assert model.describe()["kernels"] == launches
        # Nothing is left.
        assert tune(model)["times"] == []
    with opened(cache_folder=tmp_path) as model:
        assert right(model(X)[0])
        assert model.describe()["kernels"] == launches
        assert tune(model)["used"] == expected.count("used")
    # Times of another driver may be others.
    fake.set("DRIVER", "another")
    with opened(cache_folder=tmp_path) as model:
        assert tune(model)["untried"] == 0


@pytest.mark.parametrize(("faulty", "used"), [("add_a1", 1), ("add_both", 2)])
def test_a_wrong_choice_is_not_used(opened, fake, faulty, used):
    fake.set("SLOW", "add_a=3000,add_b=1000,add_a0=1500,add_a1=800,add_both=300")
    fake.set("WRONG", f"kernel {faulty}")
    with opened() as model:
        found = standings(tune(model))
        wrong = {"add_both": 0, "add_a1": 2}[faulty]
        assert found[wrong] == "wrong"
        assert list(found.values()).count("used") >= 1
        assert right(model(X)[0])


def test_a_choice_that_becomes_wrong_is_dropped(opened, fake, tmp_path):
    """A self-test goes back from a choice to the usual kernels, and from those to other ones."""
    fake.set("SLOW", "add_a=3000,add_a0=2000,add_a1=1000,add_both=300")
    with opened(cache_folder=tmp_path) as model:
        tune(model)
        fake.set("WRONG", "kernel add_both")
        assert not right(model(X)[0])
        (found,) = model.self_test_with()["functions"]
        assert (found["by"], found["right"]) == ("default", True)
        assert right(model(X)[0])
        assert model.describe()["kernels"] == 2
        fake.set("WRONG", "kernel add_a1")
        (found,) = model.self_test_with()["functions"]
        assert (found["by"], found["right"]) == ("default", True)
        assert right(model(X)[0])
        fake.set("WRONG", "kernel add_a")
        (found,) = model.self_test_with()["functions"]
        # The first choice that is right, before the plain kernel.
        assert (found["by"], found["right"]) == ("choice", True)
        assert right(model(X)[0])
    fake.set("WRONG", None)
    with opened(cache_folder=tmp_path) as model:
        assert right(model(X)[0])


def test_the_next_tuning_goes_on(opened, fake, tmp_path):
    fake.set("SLOW", "add_a=3000,add_a0=2000,add_a1=1000,add_both=300")
    reports = []
    with opened(cache_folder=tmp_path) as model:
        reports.append(tune(model, 20))
    assert reports[0]["end"] == "budget"
    assert reports[0]["untried"] > 0
    while reports[-1]["end"] == "budget":
        with opened(cache_folder=tmp_path) as model:
            reports.append(tune(model, 20))
            assert right(model(X)[0])
    assert (reports[-1]["end"], reports[-1]["untried"], reports[-1]["used"]) == ("tuned", 0, 2)
    assert len(reports) <= 5


def test_the_application_goes_on_running(opened, fake):
    """Runs are right at all times, and the choices are used from one of them on."""
    fake.set("SLOW", "add_a=3000,add_a0=2000,add_a1=1000,add_both=300")
    with opened() as model:
        begin(model)
        with pytest.raises(CallError, match="one is under way") as error:
            begin(model)
        assert error.value.status == BUSY
        end = time.monotonic() + 30
        while model.describe()["kernels"] != 1:
            assert right(model(X)[0])
            assert time.monotonic() < end
            time.sleep(0.005)
        assert right(model(X)[0])


def test_the_instance_may_be_destroyed(opened, fake):
    fake.set("SLOW", "add_a=3000")
    with opened() as model:
        begin(model)
        # A run that is not waited for would delay the tuning.
        model.set_input(0, X)
        model.call("start")
        with pytest.raises(CallError, match="tvmflow_wait first"):
            model.call("tune_wait")


def test_a_lost_device_ends_the_tuning(opened, fake, tmp_path):
    fake.set("SLOW", "add_a=3000,add_a0=2000,add_a1=1000,add_both=300")
    with opened(cache_folder=tmp_path) as model:
        fake.fake_fail(b"clFinish", ctypes.c_uint64(6), -2, False)
        begin(model)
        with pytest.raises(CallError, match=r"Tuning: .*CL_DEVICE_NOT_AVAILABLE") as error:
            model.call("tune_wait")
        assert error.value.status == DEVICE
        report = json.loads(model.library.tvmflow_tune_report(model.handle))
        assert report["end"] == "stopped"
        assert right(model(X)[0])
        assert tune(model)["end"] == "tuned"
        assert right(model(X)[0])


def test_a_hot_phone_is_left_alone(opened, fake, tmp_path):
    source = tmp_path / "android.c"
    source.write_text(
        "int heat;\n"
        "void* AThermal_acquireManager(void) { return &heat; }\n"
        "void AThermal_releaseManager(void* manager) { (void)manager; }\n"
        "int AThermal_getCurrentThermalStatus(void* manager) { return *(int*)manager; }\n"
    )
    flags = ("-shared", "-Wl,-soname,libandroid.so")
    android = ctypes.CDLL(str(compile_c(tmp_path / "libandroid.so", *flags, source)))
    heat = ctypes.c_int.in_dll(android, "heat")
    with opened() as model:
        heat.value = 2
        assert (tune(model)["end"], tune(model)["times"]) == ("hot", [])
        heat.value = 1
        assert tune(model)["end"] == "tuned"


def test_choices_survive_an_update_of_the_weights(link, opened, fake, tmp_path):
    """Binaries do, too; other kernels have neither."""
    fake.set("SLOW", "add_a=3000,add_a0=2000,add_a1=1000,add_both=300")
    with opened(cache_folder=tmp_path) as model:
        tune(model)
    updated = W + 1
    for plan, launches, built in ((chain(updated), 1, 0), (chain(updated, "// 2\n"), 2, 1)):
        fake.fake_reset()
        with opened(link(plan), cache_folder=tmp_path) as model:
            want = 3 * (2 * X + updated) + updated
            np.testing.assert_allclose(model(X)[0], want, rtol=1e-5)
            assert model.describe()["kernels"] == launches
        assert fake.fake_count(b"source") == built


@pytest.mark.parametrize("folder", ["none", "missing", "a file"])
def test_without_a_folder_choices_last_as_long_as_the_instance(opened, fake, tmp_path, folder):
    fake.set("SLOW", "add_a=3000,add_a0=2000,add_a1=1000,add_both=300")
    place = tmp_path / "cache"
    if folder == "a file":
        place.write_text("")
    options = {} if folder == "none" else {"cache_folder": place / "below"}
    with opened(**options) as model:
        assert tune(model)["used"] == 2
        assert right(model(X)[0])
        assert model.describe()["kernels"] == 1
    with opened(**options) as model:
        assert model.describe()["kernels"] == (1 if folder == "missing" else 2)


def test_two_processes_may_tune(library, driver, tmp_path):
    code = (
        "import sys; sys.path[:0] = sys.argv[4:]\n"
        "from module.standalone.test_choices import *\n"
        "with Model(Path(sys.argv[1]), opencl_library=sys.argv[2], backend=1,\n"
        "           cache_folder=sys.argv[3]) as model:\n"
        "    report = tune(model)\n"
        "    assert model.self_test().tolerance_used < 1\n"
        "print(report['used'], report['untried'])\n"
    )
    tests = str(Path(__file__).parents[2])
    command = [sys.executable, "-c", code, str(library), str(driver), str(tmp_path), tests]
    slow = {"FAKE_OPENCL_SLOW": "add_a=3000,add_a0=2000,add_a1=1000,add_both=300"}
    both = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **slow})
        for _ in range(2)
    ]
    assert [process.communicate()[0] for process in both] == ["2 0\n"] * 2


@pytest.mark.parametrize(
    ("budget", "choices", "status", "text"),
    [
        (0, True, ARGUMENT, "the budget is 0 ms, expected at least 1"),
        (1000, False, UNSUPPORTED, "has no choices. Remedy: compile it with --choices 4"),
    ],
)
def test_a_tuning_that_cannot_be(link, opened, fake, budget, choices, status, text):
    path = {} if choices else {"path": link(add_plan()[0])}
    with opened(**path) as model:
        with pytest.raises(CallError, match=text) as error:
            begin(model, budget)
        assert error.value.status == status
        assert model.library.tvmflow_tune_report(model.handle) == b"{}"
