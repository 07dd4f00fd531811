"""Buffers and images: contents survive every way of copying them."""

from __future__ import annotations

import numpy as np
import pytest
import tvm

from tvmflow.errors import DeviceError


def test_round_trips_on_every_driver(driver, script):
    images = ["--images"] if driver.images else []
    result = script("roundtrip.py", *images, env=driver.env)
    assert result["wrong"] == []
    assert result["count"] > 100


@pytest.mark.opencl
@pytest.mark.parametrize(
    ("scope", "shape"),
    [
        ("global.texture", (3, 5, 8)),
        ("global.texture", (3, 4)),
        ("global.texture-nhwc", (3, 4)),
        ("global.texture-weight", (4,)),
        ("global.texture-other", (3, 5, 4)),
    ],
)
def test_a_shape_that_does_not_fit_the_scope(scope, shape):
    with pytest.raises(ValueError, match="scope"):
        tvm.runtime.empty(shape, "float32", tvm.opencl(), mem_scope=scope)


@pytest.mark.opencl
def test_images_have_no_int64_channels():
    with pytest.raises(ValueError, match="int64"):
        tvm.runtime.empty((3, 5, 4), "int64", tvm.opencl(), mem_scope="global.texture")


@pytest.mark.opencl
def test_an_image_beyond_the_limits_names_them():
    with pytest.raises(DeviceError, match=r"10000000x1 texels.*limit of \d+x\d+") as error:
        tvm.runtime.empty((1, 10_000_000, 4), "float32", tvm.opencl(), mem_scope="global.texture")
    assert "--storage buffer" in error.value.remedy


@pytest.mark.opencl
def test_part_of_an_image_cannot_be_copied():
    device = tvm.opencl()
    image = tvm.runtime.empty((2, 3, 4), "float32", device, mem_scope="global.texture")
    half = image._create_view((1, 3, 4), "float32", relative_byte_offset=3 * 4 * 4)
    with pytest.raises(ValueError, match="as a whole"):
        half.numpy()


@pytest.mark.opencl
def test_copies_between_sizes_are_refused():
    device = tvm.opencl()
    small = tvm.runtime.tensor(np.zeros(3, "float32"), device)
    large = tvm.runtime.tensor(np.zeros(4, "float32"), device)
    with pytest.raises((ValueError, RuntimeError), match="size"):
        small.copyto(large)


def test_a_refused_allocation_names_sizes(fake, script):
    result = script("attempt.py", "allocate", env={**fake, "FAKE_REFUSE": "memory"})
    assert result["type"] == "DeviceError"
    assert "4096 bytes" in result["message"]
    assert "CL_MEM_OBJECT_ALLOCATION_FAILURE" in result["message"]
    assert "1048576" in result["message"]  # the device's largest allocation
