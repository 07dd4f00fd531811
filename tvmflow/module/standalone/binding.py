"""The C interface of a standalone library (native/bindings/tvmflow.h), through ctypes.

OpenCL libraries and the folder of built programs are chosen as in the plug-in
(native/opencl/library.cc, settings.cc), which need not be loaded.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...errors import (
    ArtifactError,
    DeviceError,
    InputError,
    KernelBuildError,
    TvmflowError,
    VerificationError,
)
from ...runtime.caches import program_cache
from ...runtime.plugin import no_device_remedy, search_folders, split_message
from ...runtime.shared_library import OpenLibrary

#: Required version of the interface; libraries of later versions include it.
API_VERSION = 1
NO_OPENCL = 2
PROFILE = 1
UNCHECKED_WEIGHTS = 4

#: Errors by status in `tvmflow_status`; every other status is a `DeviceError`.
_ERRORS: dict[int, type[TvmflowError]] = {
    1: InputError,
    4: KernelBuildError,
    6: ArtifactError,
    9: VerificationError,
}


#: Type of the callback `tvmflow_log`.
LOG = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p)


class Options(ctypes.Structure):
    """Structure `tvmflow_options`."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("device_index", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("opencl_library", ctypes.c_char_p),
        ("cache_folder", ctypes.c_char_p),
        ("weights_path", ctypes.c_char_p),
        ("cl_context", ctypes.c_void_p),
        ("cl_device", ctypes.c_void_p),
        ("backend", ctypes.c_uint32),
        ("cpu_threads", ctypes.c_uint32),
        ("priority", ctypes.c_uint32),
        ("log", LOG),
        ("log_user", ctypes.c_void_p),
    )


class ImageData(ctypes.Structure):
    """Structure `tvmflow_image`."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("width", ctypes.c_uint32),
        ("height", ctypes.c_uint32),
        ("rotation", ctypes.c_uint32),
        ("strides", ctypes.c_uint32 * 3),
        ("pixel_strides", ctypes.c_uint32 * 3),
        ("planes", ctypes.c_void_p * 3),
        ("bytes", ctypes.c_size_t * 3),
        ("cl_memory", ctypes.c_void_p),
        ("offsets", ctypes.c_size_t * 3),
        ("hardware_buffer", ctypes.c_void_p),
        ("has_format", ctypes.c_uint32),
        ("format", ctypes.c_uint32),
    )


class MemoryInfo(ctypes.Structure):
    """Structure `tvmflow_memory_info`."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("weights", ctypes.c_uint64),
        ("tensors", ctypes.c_uint64),
        ("pictures", ctypes.c_uint64),
        ("host", ctypes.c_uint64),
        ("weights_shared", ctypes.c_uint32),
    )


class MeasuredKernel(ctypes.Structure):
    """Structure `tvmflow_kernel`."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_char_p),
        ("start_ns", ctypes.c_uint64),
        ("end_ns", ctypes.c_uint64),
    )


class Test(ctypes.Structure):
    """Structure `tvmflow_test`."""

    _fields_ = (
        ("largest_error", ctypes.c_double),
        ("tolerance_used", ctypes.c_double),
        ("compared", ctypes.c_uint64),
    )


_MODEL, _INDEX, _SIZE = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_size_t
#: Functions of the library, with the types of their results and parameters.
_FUNCTIONS: dict[str, tuple[type | None, tuple[type, ...]]] = {
    "api_version": (ctypes.c_uint32, ()),
    "create": (ctypes.c_int, (ctypes.POINTER(Options), ctypes.POINTER(_MODEL))),
    "destroy": (None, (_MODEL,)),
    "message": (ctypes.c_char_p, (_MODEL,)),
    "describe": (ctypes.c_char_p, (_MODEL,)),
    "set_input": (ctypes.c_int, (_MODEL, _INDEX, ctypes.c_int, ctypes.c_void_p, _SIZE)),
    "get_output": (ctypes.c_int, (_MODEL, _INDEX, ctypes.c_int, ctypes.c_void_p, _SIZE)),
    "run": (ctypes.c_int, (_MODEL,)),
    "profile": (
        ctypes.c_int,
        (_MODEL, ctypes.POINTER(ctypes.POINTER(MeasuredKernel)), ctypes.POINTER(ctypes.c_uint32)),
    ),
    "self_test": (ctypes.c_int, (_MODEL, ctypes.POINTER(Test))),
    "memory": (ctypes.c_int, (_MODEL, ctypes.POINTER(MemoryInfo))),
    "cancel": (None, (_MODEL,)),
    "set_image": (ctypes.c_int, (_MODEL, _INDEX, ctypes.POINTER(ImageData))),
    "choose_shape": (ctypes.c_int, (_MODEL, _INDEX)),
}


class Library:
    """Functions of a loaded library, by their names without ``tvmflow_``.

    The library is unloaded with this object: its models must be destroyed before.  Raises
    `ArtifactError` if the system's loader refuses the library, or a function is missing.
    """

    def __init__(self, path: str | os.PathLike[str]):
        try:
            self._opened = OpenLibrary(path)
            self._loaded = ctypes.CDLL(self._opened.name, handle=self._opened.handle)
            for name, (result, parameters) in _FUNCTIONS.items():
                self[name].restype, self[name].argtypes = result, parameters
        except (OSError, AttributeError) as error:
            raise ArtifactError(
                f"Loading {path} failed: {error}.",
                remedy="Compile the model again with `format=standalone`, for this machine's host.",
            ) from error
        found = self["api_version"]()
        if found < API_VERSION:
            raise ArtifactError(
                f"Loading {path} failed: it has version {found} of the C interface, but this "
                f"tvmflow needs {API_VERSION}.",
                remedy="Compile the model again with this tvmflow.",
            )

    def __getitem__(self, name: str) -> Any:
        return getattr(self._loaded, f"tvmflow_{name}")

    def error(self, status: int, model: ctypes.c_void_p, attempt: str) -> TvmflowError:
        """Return the error for a status, with the model's message."""
        text = self["message"](model) if model else b"there is no memory for the model."
        # Split it like an error of the plug-in, but the remedy follows in the same line.
        lines = text.decode(errors="replace").replace(" Remedy: ", "\nRemedy: ", 1)
        message, remedy, details = split_message(lines)
        if status == NO_OPENCL:
            remedy = remedy or no_device_remedy("opencl")
        kind = _ERRORS.get(status, DeviceError)
        return kind(f"{attempt} failed: {message}", remedy=remedy, details=details)


#: Libraries that Intel's runtime opens by bare name, which works once they are loaded.
_INTEL_NEEDS = (
    "libtbb.so.12",
    "libtbbmalloc.so.2",
    "libtcm.so.1",
    "libimf.so",
    "libsvml.so",
    "libirng.so",
    "libintlc.so.5",
    "libcommon_clang.so",
    "libocl_svml_*.so",
)


def opencl_libraries() -> Iterator[str | None]:
    """Yield OpenCL libraries to try, in order; ``None`` stands for the C runtime's own search."""
    # As in the plug-in, PoCL shall compile one variant of each kernel (native/opencl/pocl.h).  The
    # C runtime does not change the environment of its process; the program that loads it may.
    os.environ.setdefault("POCL_WORK_GROUP_SPECIALIZATION", "0")
    if chosen := os.environ.get("TVMFLOW_OPENCL_LIBRARY"):
        yield _ready(chosen)
        return
    yield None
    for folder in search_folders():
        path = Path(folder, "libintelocl.so")
        if path.is_file():
            yield _ready(str(path))


def cache_folder() -> str | None:
    """Return the folder for built programs, created if needed; ``None`` if none are kept."""
    folder = program_cache("standalone")
    if folder is None:
        return None
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    return str(folder)


def _ready(library: str) -> str:
    path = Path(library)
    if path.name.startswith("libintelocl"):
        for pattern in _INTEL_NEEDS:
            for needed in path.parent.glob(pattern):
                with suppress(OSError):
                    ctypes.CDLL(str(needed))
    return library
