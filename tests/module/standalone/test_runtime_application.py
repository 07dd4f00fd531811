"""Memory of an application that a standalone library reads and writes without a copy."""

from __future__ import annotations

import ctypes

import drivers
import numpy as np
import pytest
import standalone_api as api
from small_plans import add_plan, image_plan, values

pytestmark = pytest.mark.opencl


class OpenCL:
    """As much of OpenCL as an application of the tests needs."""

    def __init__(self, path):
        self.library = ctypes.CDLL(path)
        for name in ("clCreateContext", "clCreateBuffer", "clCreateImage", "clCreateCommandQueue"):
            getattr(self.library, name).restype = ctypes.c_void_p
        platform, device = ctypes.c_void_p(), ctypes.c_void_p()
        assert self.library.clGetPlatformIDs(1, ctypes.byref(platform), None) == 0
        assert (
            self.library.clGetDeviceIDs(
                platform, ctypes.c_uint64(0xFFFFFFFF), 1, ctypes.byref(device), None
            )
            == 0
        )
        self.device = device.value
        self.context = self.library.clCreateContext(None, 1, ctypes.byref(device), None, None, None)
        self.queue = self.library.clCreateCommandQueue(
            ctypes.c_void_p(self.context), device, ctypes.c_uint64(0), None
        )

    def buffer(self, array):
        """A buffer with a copy of the array."""
        return self.library.clCreateBuffer(
            ctypes.c_void_p(self.context),
            ctypes.c_uint64(1 | 32),
            ctypes.c_size_t(array.nbytes),
            array.ctypes.data_as(ctypes.c_void_p),
            None,
        )

    def image(self, width, height, layers, channel_type=0x10DE):
        """An image array."""
        layout = (ctypes.c_size_t * 9)(0x10F3, width, height, 0, layers, 0, 0, 0, 0)
        return self.library.clCreateImage(
            ctypes.c_void_p(self.context),
            ctypes.c_uint64(1),
            (ctypes.c_uint32 * 2)(0x10B5, channel_type),
            layout,
            None,
            None,
        )

    def read(self, buffer, array):
        """Copy a buffer into the array."""
        assert (
            self.library.clEnqueueReadBuffer(
                *(ctypes.c_void_p(self.queue), ctypes.c_void_p(buffer), 1, ctypes.c_size_t(0)),
                *(ctypes.c_size_t(array.nbytes), array.ctypes.data_as(ctypes.c_void_p)),
                *(0, None, None),
            )
            == 0
        )


@pytest.fixture(params=["loader", "intel"])
def library(request):
    """An OpenCL library whose functions an application can call."""
    path = drivers.system_loader() if request.param == "loader" else drivers.DRIVERS[2].path
    if path is None:
        pytest.skip(f"no OpenCL library: {request.param}")
    count = ctypes.c_uint32()
    if ctypes.CDLL(path).clGetPlatformIDs(0, None, ctypes.byref(count)) or not count.value:
        pytest.skip(f"{path} has no platform")
    return path


def test_the_applications_memory_is_used(link, library):
    cl = OpenCL(library)
    plan, w = add_plan()
    x, y = values(64), np.zeros(64, np.float32)
    inside, outside = cl.buffer(x), cl.buffer(y)
    options = {"opencl_library": library, "cl_context": cl.context, "cl_device": cl.device}
    with api.Model(link(plan), **options) as model:
        own = values(64)
        model.set_input(0, own)
        model.call("use_input", 0, ctypes.c_void_p(inside))
        model.call("use_output", 0, ctypes.c_void_p(outside))
        model.call("run")
        cl.read(outside, y)
        np.testing.assert_allclose(y, 2 * x + w, rtol=1e-6)
        np.testing.assert_array_equal(model.get_output(0), y)
        # The network's own memory has kept what was set.
        model.call("use_input", 0, None)
        model.call("use_output", 0, None)
        model.call("run")
        np.testing.assert_allclose(model.get_output(0), 2 * own + w, rtol=1e-6)

        for memory, message in (
            (cl.buffer(values(63)), "at least 256 bytes"),
            (cl.image(5, 4, 3), "another object"),
            (OpenCL(library).buffer(x), "another cl_context"),
        ):
            with pytest.raises(api.CallError, match=message) as caught:
                model.call("use_input", 0, ctypes.c_void_p(memory))
            assert caught.value.status == api.ARGUMENT
        with pytest.raises(api.CallError, match="no output 1"):
            model.call("use_output", 1, ctypes.c_void_p(outside))
        np.testing.assert_allclose(model(x)[0], 2 * x + w, rtol=1e-6)


def test_the_applications_images_are_used(link, library):
    cl = OpenCL(library)
    x = values(3, 4, 5, 4)
    options = {"opencl_library": library, "cl_context": cl.context, "cl_device": cl.device}
    with api.Model(link(image_plan()), **options) as model:
        image = cl.image(5, 4, 3)
        model.call("use_input", 0, ctypes.c_void_p(image))
        np.testing.assert_array_equal(model(x)[0], 2 * x)
        for other in (cl.image(4, 5, 3), cl.image(5, 4, 3, 0x10DD), cl.buffer(x)):
            with pytest.raises(api.CallError, match="5x4x3") as caught:
                model.call("use_output", 0, ctypes.c_void_p(other))
            assert caught.value.status == api.ARGUMENT


def test_another_context_than_the_devices_is_refused(link):
    plan, _ = add_plan()
    with pytest.raises(api.CallError, match="cl_device is none of the devices") as caught:
        api.Model(link(plan), cl_context=8, cl_device=8)
    assert caught.value.status == api.ARGUMENT
