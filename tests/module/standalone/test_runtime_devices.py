"""The runtime's choice of a device, and its refusal of devices that cannot run the network."""

from __future__ import annotations

import numpy as np
import pytest
import runtime_build
from fake_opencl import NO_ICD, Fake, build_fake, build_no_icd
from small_plans import Plan, add_plan
from standalone_api import (
    BUILD,
    MEMORY,
    NO_OPENCL,
    UNSUPPORTED,
    CallError,
    Model,
)

from tvmflow.module.standalone.format import Section

IMAGES = """
__kernel void add_i(__read_only image2d_array_t x, __read_only image2d_array_t w,
                    __write_only image2d_array_t y, float k) {
  int4 at = (int4)(get_global_id(0), get_global_id(1), get_global_id(2), 0);
  write_imagef(y, at, k * read_imagef(x, at) + read_imagef(w, at));
}
"""
X = np.random.default_rng(5).normal(size=64).astype(np.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("devices")


@pytest.fixture(scope="module")
def driver(folder):
    return build_fake(folder)


@pytest.fixture(scope="module")
def library(folder):
    """Return a library with buffers, and its weight."""
    plan, w = add_plan()
    return runtime_build.link(folder / "libadd.so", plan.encode(), plan.weights()), w


@pytest.fixture(scope="module")
def image_library(folder):
    """Return a library with images of 4 by 2 texels in 2 layers, and its weight."""
    plan = Plan(IMAGES)
    x, weight, y = (plan.image(4, 2, 2) for _ in range(3))
    w = np.arange(64, dtype=np.float32)
    plan.weight(weight, w)
    plan.launch("add_i", [x, weight, y, np.float32(2)], (4, 2, 2))
    for section, name, image in ((Section.INPUTS, "x", x), (Section.OUTPUTS, "y", y)):
        plan.interface(section, name, (64,), image, regions=[(0, (0, 0, 0), (4, 2, 2))])
    return runtime_build.link(folder / "libimages.so", plan.encode(), plan.weights()), w


@pytest.fixture
def fake(driver):
    """Return a function that changes settings of the driver until the test ends."""
    found = Fake(driver)
    found.fake_reset()
    changed = []

    def configure(**settings):
        for name, value in settings.items():
            found.set(name, value)
            changed.append(name)
        return found

    yield configure
    assert (found.violations, found.live) == ("", "")
    for name in changed:
        found.set(name, None)


def refused(status, library, driver, *texts):
    with pytest.raises(CallError) as caught:
        Model(library, opencl_library=driver)
    assert caught.value.status == status, caught.value.message
    for text in (*texts, "Remedy: "):
        assert text in caught.value.message


def test_gpus_come_first_and_then_accelerators(library, driver, fake):
    fake(DEVICES="cpu,accelerator,gpu,cpu,gpu")
    types = []
    for index in range(5):
        with Model(library[0], opencl_library=driver, device_index=index) as model:
            types.append(model.describe()["device"]["type"])
            np.testing.assert_allclose(model(X)[0], 2 * X + library[1], rtol=1e-6)
    assert types == ["gpu", "gpu", "accelerator", "cpu", "cpu"]


@pytest.mark.parametrize(("device", "shared"), [("gpu", False), ("cpu", True)])
def test_weights_are_copied_to_gpus_and_stay_where_they_are_on_cpus(
    library, image_library, driver, fake, device, shared
):
    fake(DEVICES=device)
    for path, w in (library, image_library):
        with Model(path, opencl_library=driver) as model:
            assert model.describe()["memory"]["weights_shared"] == shared
            for _ in range(2):
                np.testing.assert_allclose(model(X)[0], 2 * X + w, rtol=1e-6)


@pytest.mark.parametrize("version", ["OpenCL 1.2", "OpenCL 10.0 fake", "OpenCL 1.10"])
def test_versions_are_numbers(library, driver, fake, version):
    fake(VERSION=version)
    with Model(library[0], opencl_library=driver) as model:
        np.testing.assert_allclose(model(X)[0], 2 * X + library[1], rtol=1e-6)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"PLATFORMS": "0"}, "no platform"),
        ({"DEVICES": ""}, "no device"),
        ({"VERSION": "OpenCL 1.1 fake"}, "older than OpenCL 1.2"),
    ],
)
def test_no_device(library, driver, fake, settings, text):
    fake(**settings)
    refused(NO_OPENCL, library[0], driver, text, str(driver))


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"IMAGES": "0"}, "needs images"),
        ({"IMAGE_WIDTH": "3"}, "image of 4x2x2"),
        ({"IMAGE_HEIGHT": "1"}, "at most 16384x1x2048"),
        ({"IMAGE_LAYERS": "1"}, "image of 4x2x2"),
        ({"BUFFER_BYTES": "255"}, "256 bytes at once"),
    ],
)
def test_images_that_the_device_does_not_have(image_library, driver, fake, settings, text):
    fake(**settings)
    refused(UNSUPPORTED, image_library[0], driver, text, "Fake GPU")


def test_work_groups_that_the_device_does_not_have(library, driver, fake):
    fake(GROUP_SIZE="15")
    refused(UNSUPPORTED, library[0], driver, "'add'", "work-groups of 16x1x1", "15 work-items")


def test_not_enough_memory(library, driver, fake):
    fake(MEMORY_BYTES="767")
    refused(MEMORY, library[0], driver, "needs 768 bytes", "has only 767")


def test_a_driver_that_builds_nothing_gives_its_log(library, driver, fake):
    fake(BUILD="fail")
    refused(BUILD, library[0], driver, "CL_BUILD_PROGRAM_FAILURE (-11)", "Build log:\n")


@pytest.mark.parametrize("first", range(3), ids=["null", "short table", "number"])
def test_a_vendor_s_library_without_icd_that_lacks_functions(library, tmp_path, first):
    """Nothing is read through its platform, which would crash the process."""
    vendor = build_no_icd(tmp_path, first)
    with pytest.raises(CallError, match="it lacks clGetDeviceInfo of OpenCL") as caught:
        Model(library[0], opencl_library=vendor)
    assert caught.value.status == NO_OPENCL


def test_a_vendor_s_library_without_icd_that_has_all_functions(library, tmp_path):
    path, w = library
    options = {"opencl_library": build_fake(tmp_path, *NO_ICD), "cache_folder": tmp_path}
    for _ in range(2):
        with Model(path, **options) as model:
            np.testing.assert_allclose(model(X), [2 * X + w], rtol=1e-6)
    assert model.library
    assert len(list(tmp_path.glob("*.program"))) == 1
