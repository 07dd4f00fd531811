"""Binding of `tvmflow.h` for ctypes, for tests that need more than `tvmflow.load`."""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tvmflow.module.standalone import binding
from tvmflow.module.standalone.binding import (
    MeasuredKernel,
    Options,
    Test,
    TestOptions,
    opencl_libraries,
)
from tvmflow.module.standalone.format import DTYPES

NAMES = {code: name for name, code in DTYPES.items()}
(OK, ARGUMENT, NO_OPENCL, UNSUPPORTED, BUILD, MEMORY, DAMAGED, DEVICE, BUSY, WRONG) = range(10)
#: `TVMFLOW_AUTO` and `TVMFLOW_OPENCL`, which is not tested at its first start.
AUTO, OPENCL = 0, 1
PROFILE, NO_COMMAND_BUFFER = binding.PROFILE, 2


class Tensor(ctypes.Structure):
    """`tvmflow_tensor`."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("layout", ctypes.c_char_p),
        ("dtype", ctypes.c_uint32),
        ("dimensions", ctypes.c_uint32),
        ("shape", ctypes.c_int64 * 8),
        ("bytes", ctypes.c_size_t),
        ("image_size", ctypes.c_uint32 * 3),
    )


class CallError(Exception):
    """A call that did not return ``TVMFLOW_OK``."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"status {status}: {message}")
        self.status, self.message = status, message


def _libraries(options: dict[str, Any]) -> Iterable[str | None]:
    """Yield OpenCL libraries to try: those of `tvmflow.load`, unless options or the user choose."""
    if "opencl_library" in options or os.environ.get("TVMFLOW_OPENCL_LIBRARY"):
        return [options.get("opencl_library")]
    return opencl_libraries()


class Model:
    """An instance; calls that fail raise `CallError`."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.library = ctypes.CDLL(str(path))
        for name in ("message", "describe", "test_report", "tune_report"):
            getattr(self.library, f"tvmflow_{name}").restype = ctypes.c_char_p
        refused = None
        for library in _libraries(options):
            try:
                self._create({**options, "opencl_library": library})
            except CallError as error:
                refused = refused or error
                if error.status == NO_OPENCL:
                    continue
                raise
            return
        assert refused
        raise refused

    def _create(self, options: dict[str, Any]) -> None:
        given = {
            key: str(value).encode() if isinstance(value, str | Path) else value
            for key, value in options.items()
        }
        self.handle = ctypes.c_void_p()
        create = self.library.tvmflow_create
        settings = Options(**{"struct_size": ctypes.sizeof(Options), **given})
        try:
            self.check(create(ctypes.byref(settings), ctypes.byref(self.handle)))
        except CallError:
            self.close()
            raise

    def check(self, status: int) -> None:
        """Raise `CallError` unless the status is ``TVMFLOW_OK``."""
        if status:
            raise CallError(status, self.library.tvmflow_message(self.handle).decode())

    def call(self, name: str, *arguments: Any) -> None:
        """Call ``tvmflow_<name>`` with this instance."""
        self.check(getattr(self.library, f"tvmflow_{name}")(self.handle, *arguments))

    def tensor(self, side: str, index: int) -> Tensor:
        """Return the description from ``tvmflow_input`` or ``tvmflow_output``."""
        info = Tensor()
        self.call(side, index, ctypes.byref(info))
        return info

    def set_input(self, index: int, array: np.ndarray) -> None:
        """Copy an array to an input."""
        array = np.ascontiguousarray(array)
        dtype = DTYPES[array.dtype.name]
        data = array.ctypes.data_as(ctypes.c_void_p)
        self.call("set_input", index, dtype, data, ctypes.c_size_t(array.nbytes))

    def get_output(self, index: int) -> np.ndarray:
        """Return a copy of an output."""
        info = self.tensor("output", index)
        found = np.empty(info.shape[: info.dimensions], NAMES[info.dtype])
        data = found.ctypes.data_as(ctypes.c_void_p)
        self.call("get_output", index, info.dtype, data, ctypes.c_size_t(found.nbytes))
        return found

    def __call__(self, *inputs: np.ndarray) -> list[np.ndarray]:
        """Set all inputs, run, and get all outputs."""
        for index, array in enumerate(inputs):
            self.set_input(index, array)
        self.call("run")
        count = self.library.tvmflow_output_count(self.handle)
        return [self.get_output(index) for index in range(count)]

    def profile(self) -> Sequence[MeasuredKernel]:
        """Return copies of the kernels' records with times: the instance may be destroyed."""
        kernels, count = ctypes.POINTER(MeasuredKernel)(), ctypes.c_uint32()
        self.call("profile", ctypes.byref(kernels), ctypes.byref(count))
        return [MeasuredKernel.from_buffer_copy(kernel) for kernel in kernels[: count.value]]

    def self_test(self) -> Test:
        """Run the self-test."""
        result = Test()
        self.call("self_test", ctypes.byref(result))
        return result

    def self_test_with(self, **options: Any) -> dict[str, Any]:
        """Run the self-test with options; return its report."""
        options.setdefault("struct_size", ctypes.sizeof(TestOptions))
        self.call("self_test_with", ctypes.byref(TestOptions(**options)), None)
        return self.report()

    def report(self) -> dict[str, Any]:
        """Return what the last self-test found."""
        return json.loads(self.library.tvmflow_test_report(self.handle))

    def describe(self) -> dict[str, Any]:
        """Return the library's description of itself."""
        return json.loads(self.library.tvmflow_describe(self.handle))

    def close(self) -> None:
        """Destroy the instance."""
        self.library.tvmflow_destroy(self.handle)
        self.handle = ctypes.c_void_p()

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
