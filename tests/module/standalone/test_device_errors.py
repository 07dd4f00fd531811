"""Devices with missing features, simulated by the fake driver: a status and a sentence."""

from __future__ import annotations

import numpy as np
import pytest
import runtime_build
import standalone_api as api
from fake_opencl import Fake, build_fake
from small_plans import Plan, add_plan

IMAGES = """
__kernel void copy(__read_only image2d_array_t x, __write_only image2d_array_t y) {}
"""


def image_plan() -> Plan:
    """Return a plan that copies an image of 40 by 3 texels in 5 layers."""
    plan = Plan(IMAGES)
    x, y = (plan.image(40, 3, 5) for _ in range(2))
    plan.launch("copy", [x, y], (40, 3, 5), (20, 3, 1))
    for add, name, allocation in ((plan.input, "x", x), (plan.output, "y", y)):
        add(name, (5, 3, 40, 4), allocation, regions=[(0, (0, 0, 0), (40, 3, 5))])
    return plan


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Return libraries with buffers and with images, and the driver."""
    folder = tmp_path_factory.mktemp("devices")
    plans = {"buffers": add_plan()[0], "images": image_plan()}
    libraries = {
        name: runtime_build.link(folder / f"lib{name}.so", plan.encode(), plan.weights())
        for name, plan in plans.items()
    }
    return libraries, build_fake(folder)


@pytest.mark.parametrize(
    ("network", "settings", "status", "texts"),
    [
        ("buffers", {"PLATFORMS": "0"}, api.NO_OPENCL, ["libOpenCL.so: it has no platform"]),
        ("buffers", {"DEVICES": ""}, api.NO_OPENCL, ["a platform has no device"]),
        ("buffers", {"VERSION": "OpenCL 1.1 old"}, api.NO_OPENCL, ["older than OpenCL 1.2"]),
        ("images", {"IMAGES": "0"}, api.UNSUPPORTED, ["needs images", "'Fake GPU' has none"]),
        ("images", {"IMAGE_WIDTH": "39"}, api.UNSUPPORTED, ["40x3x5", "at most 39x16384x2048"]),
        ("images", {"IMAGE_HEIGHT": "2"}, api.UNSUPPORTED, ["40x3x5", "at most 16384x2x2048"]),
        ("images", {"IMAGE_LAYERS": "4"}, api.UNSUPPORTED, ["40x3x5", "at most 16384x16384x4"]),
        ("images", {"GROUP_SIZE": "59"}, api.UNSUPPORTED, ["work-groups of 20x3x1", "59"]),
        ("buffers", {"BUFFER_BYTES": "255"}, api.UNSUPPORTED, ["256 bytes", "at most 255"]),
        ("buffers", {"MEMORY_BYTES": "767"}, api.MEMORY, ["768 bytes", "only 767"]),
        ("buffers", {"BUILD": "fail"}, api.BUILD, ["fake.cl:1:1: error: use of undeclared"]),
    ],
)
def test_what_a_device_lacks_is_told(built, network, settings, status, texts):
    libraries, driver = built
    fake = Fake(driver)
    fake.fake_reset()
    for name, value in settings.items():
        fake.set(name, value)
    try:
        with pytest.raises(api.CallError) as caught:
            api.Model(libraries[network], opencl_library=driver)
    finally:
        for name in settings:
            fake.set(name, None)
    assert caught.value.status == status
    for text in [*texts, "Remedy"]:
        assert text in caught.value.message
    assert not fake.violations
    assert not fake.live
    with api.Model(libraries[network], opencl_library=driver):
        pass


@pytest.mark.parametrize(
    ("function", "code", "texts"),
    [
        (
            "clCreateCommandQueue",
            -35,
            ["a queue that measures kernels", "no such queues", "Remedy: measure whole runs"],
        ),
        ("clGetEventProfilingInfo", -7, ["Reading the time of kernel", "does not tell when"]),
    ],
)
def test_a_device_that_measures_no_kernels(built, function, code, texts):
    libraries, driver = built
    fake = Fake(driver)
    fake.fake_reset()
    fake.fake_fail(function.encode(), 1, code, False)

    def measure() -> None:
        with api.Model(libraries["buffers"], opencl_library=driver, flags=api.PROFILE) as model:
            for index in range(model.library.tvmflow_input_count(model.handle)):
                info = model.tensor("input", index)
                model.set_input(index, np.ones(info.shape[: info.dimensions], np.float32))
            model.profile()

    with pytest.raises(api.CallError) as caught:
        measure()
    assert caught.value.status == api.DEVICE
    for text in texts:
        assert text in caught.value.message
    assert not fake.violations
    assert not fake.live


@pytest.mark.parametrize("network", ["buffers", "images"])
def test_memory_that_others_have_taken(built, network):
    """The device has enough memory, but it is in use: the allocation fails."""
    libraries, driver = built
    fake = Fake(driver)
    fake.fake_reset()
    with api.Model(libraries[network], opencl_library=driver) as first:
        used = fake.fake_memory()
        fake.set("MEMORY_BYTES", str(used + used // 2))
        try:
            with pytest.raises(api.CallError, match="CL_MEM_OBJECT_ALLOCATION_FAILURE") as caught:
                api.Model(libraries[network], opencl_library=driver)
        finally:
            fake.set("MEMORY_BYTES", None)
        assert caught.value.status == api.MEMORY
        assert fake.fake_memory() == used
        info = first.tensor("input", 0)
        first.set_input(0, np.ones(info.shape[: info.dimensions], np.float32))
        first.call("run")
    assert not fake.live
