"""OpenCL as used by an application, alongside a standalone library."""

from __future__ import annotations

import ctypes


class OpenCL:
    """The part of OpenCL that an application of the tests needs."""

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

    @property
    def options(self):
        """Return options of a model in the application's context."""
        return {"cl_context": self.context, "cl_device": self.device}

    def buffer(self, array):
        """Create a buffer with a copy of the array."""
        return self.library.clCreateBuffer(
            ctypes.c_void_p(self.context),
            ctypes.c_uint64(1 | 32),
            ctypes.c_size_t(array.nbytes),
            array.ctypes.data_as(ctypes.c_void_p),
            None,
        )

    def image(self, width, height, layers, channel_type=0x10DE):
        """Create an image array."""
        layout = (ctypes.c_size_t * 9)(0x10F3, width, height, 0, layers, 0, 0, 0, 0)
        return self.library.clCreateImage(
            ctypes.c_void_p(self.context),
            ctypes.c_uint64(1),
            (ctypes.c_uint32 * 2)(0x10B5, channel_type),
            layout,
            None,
            None,
        )

    def picture(self, pixels, order=0x10B5):
        """Create an image of the pixels ``[height, width, 4]``, whose levels are read as 0 to 1."""
        layout = (ctypes.c_size_t * 9)(0x10F1, pixels.shape[1], pixels.shape[0], *(0,) * 6)
        return self.library.clCreateImage(
            ctypes.c_void_p(self.context),
            ctypes.c_uint64(4 | 32),
            (ctypes.c_uint32 * 2)(order, 0x10D2),
            layout,
            pixels.ctypes.data_as(ctypes.c_void_p),
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
