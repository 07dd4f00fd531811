"""Memory of the application is retained as long as a model uses it."""

from __future__ import annotations

from ctypes import c_int64, c_uint64

import numpy as np
import pytest
from support.fake_opencl import Application, Fake, build_fake
from support.small_plans import add_plan, plan_of_two_shapes
from support.standalone_api import DEVICE, CallError, Model

SIZE = 64
X = np.random.default_rng(8).normal(size=SIZE).astype(np.float32)


@pytest.fixture(scope="module")
def built(link, tmp_path_factory):
    """Return the library, its weight, and the driver."""
    plan, w = add_plan()
    return link(plan), w, build_fake(tmp_path_factory.mktemp("retained"))


@pytest.fixture
def driver(built):
    driver = Fake(built[2])
    driver.fake_reset()
    yield driver
    assert (driver.violations, driver.live) == ("", "")
    driver.fake_reset()


@pytest.fixture
def application(driver):
    found = Application(driver)
    yield found
    found.close()


@pytest.fixture
def model(built, application):
    with Model(built[0], opencl_library=built[2], **application.options) as model:
        yield model


def references(driver):
    """Return the numbers of retained and released memory objects."""
    return tuple(driver.fake_count(name) for name in (b"clRetainMemObject", b"clReleaseMemObject"))


def test_the_application_may_release_at_once(built, driver, application, model):
    mine = application.buffer(X)
    model.call("use_input", 0, mine)
    driver.clReleaseMemObject(mine)
    for _ in range(2):
        model.call("run")
        np.testing.assert_allclose(model.get_output(0), 2 * X + built[1], rtol=1e-6)


def test_other_memory_takes_its_place(built, driver, application, model):
    for index in range(3):
        mine = application.buffer(X + index)
        model.call("use_input", 0, mine)
        driver.clReleaseMemObject(mine)
        model.call("run")
        np.testing.assert_allclose(model.get_output(0), 2 * (X + index) + built[1], rtol=1e-6)
    # Each but the last one is released: the application's references, and the model's.
    assert references(driver) == (3, 5)


def test_the_networks_own_memory_is_given_back(driver, application, model):
    mine = application.buffer(X)
    model.call("use_output", 0, mine)
    assert references(driver) == (1, 0)
    model.call("use_output", 0, mine)  # the same again: one reference stays
    assert references(driver) == (2, 1)
    model.call("use_output", 0, None)
    assert references(driver) == (2, 2)
    model.call("use_output", 0, None)
    assert references(driver) == (2, 2)
    driver.clReleaseMemObject(mine)


def test_a_driver_that_does_not_retain(driver, application, model):
    mine = application.buffer(X)
    driver.fake_fail(b"clRetainMemObject", c_uint64(1), -6, False)
    with pytest.raises(CallError, match="Retaining the application's memory") as caught:
        model.call("use_input", 0, mine)
    assert caught.value.status != 0
    assert references(driver)[1] == 0
    driver.clReleaseMemObject(mine)


def test_memory_that_a_kernel_does_not_take(built, driver, application, model):
    """Nothing is retained then, and the model keeps its earlier memory."""
    mine, other = application.buffer(X), application.buffer(X)
    model.call("use_input", 0, mine)
    driver.fake_fail(
        b"clSetKernelArg", c_uint64(driver.fake_count(b"clSetKernelArg") + 1), -38, False
    )
    with pytest.raises(CallError) as caught:
        model.call("use_input", 0, other)
    assert caught.value.status == DEVICE
    assert references(driver) == (2, 1)
    driver.clReleaseMemObject(other)
    driver.clReleaseMemObject(mine)
    model.call("run")
    np.testing.assert_allclose(model.get_output(0), 2 * X + built[1], rtol=1e-6)


def test_another_shape_gives_the_applications_memory_back(built, driver, application, link):
    """It may be too small for that shape, whose kernels use the same allocations."""
    plan, w = plan_of_two_shapes()
    half = SIZE // 2
    with Model(link(plan), opencl_library=built[2], **application.options) as model:
        model.call("set_shape", 0, (c_int64 * 1)(half), 1)
        mine, out = application.buffer(X), application.buffer()
        model.call("use_input", 0, mine)
        model.call("use_output", 0, out)
        model.call("run")
        np.testing.assert_allclose(model.get_output(0), 2 * X[:half] + w[:half], rtol=1e-6)
        model.call("choose_shape", 1)  # the current shape: nothing changes
        assert references(driver) == (2, 0)
        model.call("choose_shape", 0)
        assert references(driver) == (2, 2)
        driver.clReleaseMemObject(mine)
        driver.clReleaseMemObject(out)
        (found,) = model(X)
        np.testing.assert_allclose(found, 2 * X + w, rtol=1e-6)
        model.call("choose_shape", 1)
        (found,) = model(X[:half])
        np.testing.assert_allclose(found, 2 * X[:half] + w[:half], rtol=1e-6)
        with pytest.raises(CallError, match=r"but not \[48\]; the nearest is \[64\]"):
            model.call("set_shape", 0, (c_int64 * 1)(48), 1)
