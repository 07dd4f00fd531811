"""Warming up before the first run, and binaries that are stored while the application runs."""

from __future__ import annotations

import ctypes
import threading

import numpy as np
import pytest
from support import standalone_api as api
from support.fake_opencl import Fake
from support.small_plans import Plan, add_plan, plan_of_two_shapes, values
from support.threads import in_threads

from tvmflow.module.standalone.format import Section

LOOK_UP = """
__kernel void look_up(__global const int* x, __global const float* w, __global float* y) {
  y[get_global_id(0)] = w[x[get_global_id(0)]];
}
"""


def look_up_plan() -> tuple[Plan, np.ndarray]:
    """Return a plan of ``y = w[x]``: arbitrary content of memory is no valid index."""
    plan, w = Plan(LOOK_UP), values(8)
    x, weight, y = plan.buffer(64), plan.buffer(32), plan.buffer(64)
    plan.weight(weight, w)
    plan.launch("look_up", [x, weight, y], (16,), (4,))
    plan.input("x", (16,), x, dtype="int32")
    plan.output("y", (16,), y)
    return plan, w


def test_inputs_that_were_not_set_are_zeros(link):
    plan, w = look_up_plan()
    with api.Model(link(plan)) as model:
        model.call("warm_up")
        np.testing.assert_array_equal(model.get_output(0), np.full(16, w[0]))
        x = np.arange(16, dtype=np.int32) % 8
        np.testing.assert_array_equal(model(x)[0], w[x])
        # After a run, its results stay.
        model.set_input(0, np.full(16, 3, np.int32))
        model.call("warm_up")
        np.testing.assert_array_equal(model.get_output(0), w[x])


def test_inputs_that_were_set_stay(link):
    plan, w = add_plan()
    x = values(64)
    with api.Model(link(plan)) as model:
        model.set_input(0, x)
        model.call("warm_up")
        np.testing.assert_allclose(model.get_output(0), 2 * x + w, rtol=1e-6)


def test_each_shape_is_warmed_up(link):
    plan, w = plan_of_two_shapes()
    with api.Model(link(plan)) as model:
        for shape, size in ((0, 64), (1, 32)):
            model.call("choose_shape", shape)
            model.call("warm_up")
            np.testing.assert_allclose(model.get_output(0), w[:size], rtol=1e-6)


def test_in_the_background(link):
    plan, w = add_plan()
    x = values(64)
    with api.Model(link(plan)) as model:
        thread = threading.Thread(target=model.call, args=["warm_up"])
        thread.start()
        thread.join()
        np.testing.assert_allclose(model(x)[0], 2 * x + w, rtol=1e-6)


def test_what_is_started_is_waited_for_first(link):
    plan, _ = add_plan()
    with api.Model(link(plan)) as model:
        model.call("start")
        with pytest.raises(api.CallError, match="Warming up: a run was started") as caught:
            model.call("warm_up")
        assert caught.value.status == api.BUSY
        model.call("wait")


def test_the_device_may_fail(link, driver):
    plan, _ = add_plan()
    with api.Model(link(plan), opencl_library=driver) as model:
        Fake(driver).fake_fail(b"clEnqueueNDRangeKernel", ctypes.c_uint64(1), -5, True)
        with pytest.raises(api.CallError, match="CL_OUT_OF_RESOURCES"):
            model.call("warm_up")


def test_binaries_are_there_when_the_model_ends(link, tmp_path):
    plan, _ = add_plan()
    other = plan.program("__kernel void other(__global float* x) { x[0] = 1; }")
    plan.launch("other", [2], (1,), program=other)
    assert len(plan.rows[Section.PROGRAMS]) == 2
    path, folder = link(plan), tmp_path / "cache"
    for built in (2, 0):
        with api.Model(path, cache_folder=folder) as model:
            model.call("warm_up")
            assert model.describe()["programs_built"] == built
        assert len(list(folder.glob("*.program"))) == 2
        assert not list(folder.glob("tmp-*"))


def test_many_at_once_in_one_folder(link, tmp_path):
    plan, w = add_plan()
    path, x = link(plan), values(64)

    def use(_: int) -> None:
        for _ in range(5):
            with api.Model(path, cache_folder=tmp_path / "cache") as model:
                model.call("warm_up")
                np.testing.assert_allclose(model(x)[0], 2 * x + w, rtol=1e-6)

    in_threads(4, use)
    assert len(list((tmp_path / "cache").glob("*.program"))) == 1
