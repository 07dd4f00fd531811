"""Memory of an application that a standalone library reads and writes without a copy."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from support import standalone_api as api
from support.opencl_application import OpenCL
from support.small_plans import add_plan, image_plan, values

pytestmark = pytest.mark.opencl


def test_the_applications_memory_is_used(link, application_library):
    cl = OpenCL(application_library)
    plan, w = add_plan()
    x, y = values(64), np.zeros(64, np.float32)
    inside, outside = cl.buffer(x), cl.buffer(y)
    with api.Model(link(plan), opencl_library=application_library, **cl.options) as model:
        own = values(64)
        model.set_input(0, own)
        model.call("use_input", 0, ctypes.c_void_p(inside))
        model.call("use_output", 0, ctypes.c_void_p(outside))
        model.call("run")
        cl.read(outside, y)
        np.testing.assert_allclose(y, 2 * x + w, rtol=1e-6)
        np.testing.assert_array_equal(model.get_output(0), y)
        # The network's own memory has kept its content.
        model.call("use_input", 0, None)
        model.call("use_output", 0, None)
        model.call("run")
        np.testing.assert_allclose(model.get_output(0), 2 * own + w, rtol=1e-6)

        for memory, message in (
            (cl.buffer(values(63)), "at least 256 bytes"),
            (cl.image(5, 4, 3), "another object"),
            (OpenCL(application_library).buffer(x), "another cl_context"),
        ):
            with pytest.raises(api.CallError, match=message) as caught:
                model.call("use_input", 0, ctypes.c_void_p(memory))
            assert caught.value.status == api.ARGUMENT
        with pytest.raises(api.CallError, match="no output 1"):
            model.call("use_output", 1, ctypes.c_void_p(outside))
        np.testing.assert_allclose(model(x)[0], 2 * x + w, rtol=1e-6)


def test_the_applications_images_are_used(link, application_library):
    cl = OpenCL(application_library)
    x = values(3, 4, 5, 4)
    library = link(image_plan())
    with api.Model(library, opencl_library=application_library, **cl.options) as model:
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
