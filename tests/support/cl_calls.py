"""A part of OpenCL through ctypes, for the interpreter of plans."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_char_p, c_int32, c_size_t, c_uint32, c_uint64, c_void_p
from functools import cache
from typing import Any

import numpy as np

from tvmflow.runtime.devices import opencl_devices

_ALL_DEVICES = 0xFFFFFFFF
_READ_WRITE = 1
_RGBA = 0x10B5
_IMAGE2D_ARRAY = 0x10F3
_BUILD_LOG = 0x1183


class ImageFormat(ctypes.Structure):
    _fields_ = (("order", c_uint32), ("channels", c_uint32))


class ImageDescription(ctypes.Structure):
    _fields_ = (
        ("kind", c_uint32),
        ("width", c_size_t),
        ("height", c_size_t),
        ("depth", c_size_t),
        ("layers", c_size_t),
        ("row_pitch", c_size_t),
        ("slice_pitch", c_size_t),
        ("mip_levels", c_uint32),
        ("samples", c_uint32),
        ("buffer", c_void_p),
    )


@cache
def _library() -> ctypes.CDLL:
    found = ctypes.CDLL(opencl_devices()[0].library)
    for name in (
        "clCreateContext",
        "clCreateCommandQueue",
        "clCreateBuffer",
        "clCreateImage",
        "clCreateProgramWithSource",
        "clCreateKernel",
    ):
        getattr(found, name).restype = c_void_p
    return found


def _call(name: str, *arguments: Any) -> None:
    code = getattr(_library(), name)(*arguments)
    assert code == 0, f"{name}: error {code}"


def _create(name: str, *arguments: Any) -> c_void_p:
    code = c_int32()
    made = getattr(_library(), name)(*arguments, byref(code))
    assert code.value == 0, f"{name}: error {code.value}"
    return c_void_p(made)


def _triple(values: Any) -> Any:
    return (c_size_t * 3)(*(int(v) for v in values))


class Device:
    """The first device of the first platform, with a context and a queue."""

    def __init__(self) -> None:
        platform, self.device = c_void_p(), c_void_p()
        _call("clGetPlatformIDs", 1, byref(platform), None)
        _call("clGetDeviceIDs", platform, c_uint64(_ALL_DEVICES), 1, byref(self.device), None)
        self.context = _create("clCreateContext", None, 1, byref(self.device), None, None)
        self.queue = _create("clCreateCommandQueue", self.context, self.device, c_uint64(0))

    def buffer(self, size: int) -> c_void_p:
        """Create a buffer."""
        return _create("clCreateBuffer", self.context, c_uint64(_READ_WRITE), c_size_t(size), None)

    def image(self, size: Any, channels: int) -> c_void_p:
        """Create an image array of RGBA texels."""
        width, height, layers = (int(extent) for extent in size)
        about = ImageDescription(_IMAGE2D_ARRAY, width, height, 1, layers)
        kind = ImageFormat(_RGBA, channels)
        flags = c_uint64(_READ_WRITE)
        return _create("clCreateImage", self.context, flags, byref(kind), byref(about), None)

    def write(self, memory: c_void_p, data: np.ndarray) -> None:
        """Copy an array to the beginning of a buffer."""
        data = np.ascontiguousarray(data)
        place = c_void_p(data.ctypes.data)
        arguments = (1, c_size_t(0), c_size_t(data.nbytes), place, 0, None, None)
        _call("clEnqueueWriteBuffer", self.queue, memory, *arguments)

    def read(self, memory: c_void_p, data: np.ndarray) -> None:
        """Copy the beginning of a buffer to an array."""
        place = c_void_p(data.ctypes.data)
        arguments = (1, c_size_t(0), c_size_t(data.nbytes), place, 0, None, None)
        _call("clEnqueueReadBuffer", self.queue, memory, *arguments)

    def move_texels(
        self, name: str, memory: c_void_p, data: np.ndarray, origin: Any, size: Any
    ) -> None:
        """Call ``clEnqueueReadImage`` or ``clEnqueueWriteImage`` on a part of an image."""
        pitches = (c_size_t(0), c_size_t(0))
        place = c_void_p(data.ctypes.data)
        where = (_triple(origin), _triple(size))
        _call(name, self.queue, memory, 1, *where, *pitches, place, 0, None, None)

    def program(self, source: str, options: str) -> c_void_p:
        """Build a program."""
        text = c_char_p(source.encode())
        program = _create("clCreateProgramWithSource", self.context, 1, byref(text), None)
        built = _library().clBuildProgram(
            program, 1, byref(self.device), options.encode(), None, None
        )
        if built != 0:
            log = ctypes.create_string_buffer(1 << 16)
            _library().clGetProgramBuildInfo(
                program, self.device, _BUILD_LOG, c_size_t(len(log)), log, None
            )
            raise AssertionError(f"clBuildProgram: error {built}\n{log.value.decode()}")
        return program

    def kernel(self, program: c_void_p, name: str) -> c_void_p:
        """Create a kernel of a program."""
        return _create("clCreateKernel", program, name.encode())

    def memory_argument(self, kernel: c_void_p, index: int, memory: c_void_p) -> None:
        """Set a buffer or an image as a kernel's argument."""
        _call("clSetKernelArg", kernel, index, c_size_t(8), byref(memory))

    def value_argument(self, kernel: c_void_p, index: int, value: bytes) -> None:
        """Set a scalar as a kernel's argument."""
        _call("clSetKernelArg", kernel, index, c_size_t(len(value)), value)

    def launch(self, kernel: c_void_p, dimensions: int, size: Any, group: Any) -> None:
        """Enqueue a kernel."""
        where = (_triple(size), _triple(group))
        _call("clEnqueueNDRangeKernel", self.queue, kernel, dimensions, None, *where, 0, None, None)

    def finish(self) -> None:
        """Wait for all enqueued commands."""
        _call("clFinish", self.queue)
