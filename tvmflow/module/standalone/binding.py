"""The C interface of a standalone library (native/bindings/tvmflow.h), through ctypes.

OpenCL libraries and the folder of built programs are chosen as in the plug-in
(native/opencl/devices.cc, settings.cc), which need not be loaded.
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

_SIZE, _U4, _U8 = ctypes.c_size_t, ctypes.c_uint32, ctypes.c_uint64
_TEXT, _POINTER, _DOUBLE = ctypes.c_char_p, ctypes.c_void_p, ctypes.c_double


def _fields(**types: type) -> tuple[tuple[str, type], ...]:
    return tuple(types.items())


class Options(ctypes.Structure):
    """Structure `tvmflow_options`."""

    _fields_ = _fields(
        struct_size=_SIZE, device_index=_U4, flags=_U4, opencl_library=_TEXT, cache_folder=_TEXT,
        weights_path=_TEXT, cl_context=_POINTER, cl_device=_POINTER, backend=_U4, cpu_threads=_U4,
        priority=_U4, log=LOG, log_user=_POINTER, drivers=_TEXT, performance=_U4,
    )  # fmt: skip


class ImageData(ctypes.Structure):
    """Structure `tvmflow_image`."""

    _fields_ = _fields(
        struct_size=_SIZE, width=_U4, height=_U4, rotation=_U4, strides=_U4 * 3,
        pixel_strides=_U4 * 3, planes=_POINTER * 3, bytes=_SIZE * 3, cl_memory=_POINTER,
        offsets=_SIZE * 3, hardware_buffer=_POINTER, has_format=_U4, format=_U4,
    )  # fmt: skip


class MemoryInfo(ctypes.Structure):
    """Structure `tvmflow_memory_info`."""

    _fields_ = _fields(
        struct_size=_SIZE, weights=_U8, tensors=_U8, pictures=_U8, host=_U8, weights_shared=_U4
    )


class MeasuredKernel(ctypes.Structure):
    """Structure `tvmflow_kernel`."""

    _fields_ = _fields(name=_TEXT, function=_TEXT, start_ns=_U8, end_ns=_U8)


class Test(ctypes.Structure):
    """Structure `tvmflow_test`."""

    _fields_ = _fields(largest_error=_DOUBLE, tolerance_used=_DOUBLE, compared=_U8)


class TestOptions(ctypes.Structure):
    """Structure `tvmflow_test_options`."""

    _fields_ = _fields(struct_size=_SIZE, runs=_U4, pause_ms=_U4, budget_ms=_U4, flags=_U4)

    @classmethod
    def of(cls, runs: int, pause_ms: int, budget_ms: int, second_instance: bool) -> TestOptions:
        """Return options; raise `InputError` for a number that the structure cannot hold."""
        numbers = {"runs": runs, "pause_ms": pause_ms, "budget_ms": budget_ms}
        for name, number in numbers.items():
            if not 0 <= number < 1 << 32:
                raise InputError(
                    f"A self-test got {name}={number}, expected a number from 0 to "
                    f"{(1 << 32) - 1}.",
                    remedy=f"Leave `{name}` out.",
                )
        return cls(ctypes.sizeof(cls), *numbers.values(), TEST_SECOND_INSTANCE * second_instance)


#: Fields of `TestOptions` after its size.
TEST_FIELDS = ("runs", "pause_ms", "budget_ms", "flags")
#: Flag of `TestOptions`: another instance of the library runs at the same time.
TEST_SECOND_INSTANCE = 1
#: Type `tvmflow_tune_progress`.
TUNE_PROGRESS = ctypes.CFUNCTYPE(None, _POINTER, _DOUBLE)
_MODEL, _INDEX, _STATUS = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int
_KERNELS = ctypes.POINTER(MeasuredKernel)
#: Functions of the library, with the types of their results and parameters.
_FUNCTIONS: dict[str, tuple[type | None, tuple[type, ...]]] = {
    "api_version": (_U4, ()),
    "create": (_STATUS, (ctypes.POINTER(Options), ctypes.POINTER(_MODEL))),
    "destroy": (None, (_MODEL,)),
    "message": (_TEXT, (_MODEL,)),
    "describe": (_TEXT, (_MODEL,)),
    "set_input": (_STATUS, (_MODEL, _INDEX, ctypes.c_int, _POINTER, _SIZE)),
    "get_output": (_STATUS, (_MODEL, _INDEX, ctypes.c_int, _POINTER, _SIZE)),
    "run": (_STATUS, (_MODEL,)),
    "profile": (_STATUS, (_MODEL, ctypes.POINTER(_KERNELS), ctypes.POINTER(_U4))),
    "self_test_with": (_STATUS, (_MODEL, ctypes.POINTER(TestOptions), ctypes.POINTER(Test))),
    "test_report": (_TEXT, (_MODEL,)),
    "tune": (_STATUS, (_MODEL, _U4, TUNE_PROGRESS, _POINTER)),
    "tune_wait": (_STATUS, (_MODEL,)),
    "tune_report": (_TEXT, (_MODEL,)),
    "memory": (_STATUS, (_MODEL, ctypes.POINTER(MemoryInfo))),
    "cancel": (None, (_MODEL,)),
    "set_image": (_STATUS, (_MODEL, _INDEX, ctypes.POINTER(ImageData))),
    "choose_shape": (_STATUS, (_MODEL, _INDEX)),
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
    # As in the plug-in (native/opencl/devices.cc), PoCL shall compile each kernel once for all
    # sizes of groups.  The C runtime does not change the environment of its process; the program
    # that loads it may.
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
