"""The runtime's choice of a device, and its refusal of devices that cannot run the network."""

from __future__ import annotations

import numpy as np
import pytest
from support.fake_opencl import NO_ICD, Fake, build_fake, build_no_icd
from support.small_plans import ADD_IMAGES, Plan, add_plan
from support.standalone_api import (
    BUILD,
    DEVICE,
    MEMORY,
    NO_OPENCL,
    PROFILE,
    UNSUPPORTED,
    CallError,
    Model,
)

from tvmflow.module.standalone.format import Section

X = np.random.default_rng(5).normal(size=64).astype(np.float32)


@pytest.fixture(scope="module")
def library(link):
    """Return a library with buffers, and its weight."""
    plan, w = add_plan()
    return link(plan), w


@pytest.fixture(scope="module")
def image_library(link):
    """Return a library with images of 4 by 2 texels in 2 layers, and its weight."""
    plan = Plan(ADD_IMAGES)
    x, weight, y = (plan.image(4, 2, 2) for _ in range(3))
    w = np.arange(64, dtype=np.float32)
    plan.weight(weight, w)
    plan.launch("add_i", [x, weight, y, np.float32(2)], (4, 2, 2))
    for section, name, image in ((Section.INPUTS, "x", x), (Section.OUTPUTS, "y", y)):
        plan.interface(section, name, (64,), image, regions=[(0, (0, 0, 0), (4, 2, 2))])
    return link(plan), w


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


@pytest.fixture(scope="module")
def networks(library, image_library):
    """Return the paths of both libraries by name."""
    return {"buffers": library[0], "images": image_library[0]}


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
    ("network", "settings", "status", "texts"),
    [
        ("buffers", {"PLATFORMS": "0"}, NO_OPENCL, ["libOpenCL.so: it has no platform"]),
        ("buffers", {"DEVICES": ""}, NO_OPENCL, ["platform 'Fake platform' has no device"]),
        ("buffers", {"VERSION": "OpenCL 1.1 old"}, NO_OPENCL, ["older than OpenCL 1.2"]),
        ("images", {"IMAGES": "0"}, UNSUPPORTED, ["needs images", "'Fake GPU' has none"]),
        ("images", {"IMAGE_WIDTH": "3"}, UNSUPPORTED, ["4x2x2", "at most 3x16384x2048"]),
        ("images", {"IMAGE_HEIGHT": "1"}, UNSUPPORTED, ["4x2x2", "at most 16384x1x2048"]),
        ("images", {"IMAGE_LAYERS": "1"}, UNSUPPORTED, ["4x2x2", "at most 16384x16384x1"]),
        ("images", {"BUFFER_BYTES": "255"}, UNSUPPORTED, ["256 bytes at once", "Fake GPU"]),
        ("buffers", {"BUFFER_BYTES": "255"}, UNSUPPORTED, ["256 bytes", "at most 255"]),
        (
            "buffers",
            {"GROUP_SIZE": "15"},
            UNSUPPORTED,
            ["'add'", "work-groups of 16x1x1", "15 work-items"],
        ),
        ("buffers", {"MEMORY_BYTES": "767"}, MEMORY, ["needs 768 bytes", "has only 767"]),
        (
            "buffers",
            {"BUILD": "fail"},
            BUILD,
            ["CL_BUILD_PROGRAM_FAILURE (-11)", "Build log:\n", "fake.cl:1:1: error: use of undecl"],
        ),
    ],
)
def test_devices_that_lack_something(networks, driver, fake, network, settings, status, texts):
    fake(**settings)
    with pytest.raises(CallError) as caught:
        Model(networks[network], opencl_library=driver)
    assert caught.value.status == status, caught.value.message
    for text in (*texts, "Remedy: "):
        assert text in caught.value.message
    fake(**dict.fromkeys(settings))
    with Model(networks[network], opencl_library=driver):
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
def test_a_device_that_measures_no_kernels(library, driver, fake, function, code, texts):
    fake().fake_fail(function.encode(), 1, code, False)

    def measure() -> None:
        with Model(library[0], opencl_library=driver, flags=PROFILE) as model:
            model.set_input(0, X)
            model.profile()

    with pytest.raises(CallError) as caught:
        measure()
    assert caught.value.status == DEVICE
    for text in texts:
        assert text in caught.value.message


@pytest.mark.parametrize("network", ["buffers", "images"])
def test_memory_that_others_have_taken(networks, driver, fake, network):
    """The device has enough memory, but it is in use: the allocation fails."""
    with Model(networks[network], opencl_library=driver) as first:
        used = fake().fake_memory()
        fake(MEMORY_BYTES=str(used + used // 2))
        with pytest.raises(CallError, match="CL_MEM_OBJECT_ALLOCATION_FAILURE") as caught:
            Model(networks[network], opencl_library=driver)
        fake(MEMORY_BYTES=None)
        assert caught.value.status == MEMORY
        assert fake().fake_memory() == used
        first(X)


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
