"""Loads the OpenCL plug-in into TVM.

TVM calls :func:`autoload` at ``import tvm``, in its sub-processes and RPC servers
too, because this package declares it in the entry-point group ``tvm.backends``.
Loading registers the device API and the modules of kind ``opencl``; no OpenCL
library is opened before a device is used.
"""

from __future__ import annotations

import ctypes
import json
import site
import sys
import sysconfig
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from ..errors import DeviceError, EnvironmentMismatchError, KernelBuildError

#: The plug-in, built beside this file.
LIBRARY = Path(__file__).with_name("libtvmflow_opencl.so")

_handle: ctypes.CDLL | None = None


class NativeDeviceError(DeviceError):
    """A :class:`~tvmflow.errors.DeviceError` raised in C++.

    The native text has the message in its first line, the remedy in a line that
    begins with ``Remedy:``, and details below; TVM creates the exception from it.
    """

    def __init__(self, text: str):
        message, remedy, details = split_message(text)
        super().__init__(message, remedy=remedy, details=details)


class NativeKernelBuildError(KernelBuildError):
    """A :class:`~tvmflow.errors.KernelBuildError` raised in C++, with the build log."""

    def __init__(self, text: str):
        message, remedy, details = split_message(text)
        super().__init__(message, remedy=remedy, details=details)


def split_message(text: str) -> tuple[str, str | None, str | None]:
    """Return the message, the remedy and the details of an error raised in C++."""
    message, _, rest = text.partition("\n")
    remedy = None
    if rest.startswith("Remedy: "):
        remedy, _, rest = rest.removeprefix("Remedy: ").partition("\n")
    return message, remedy, rest or None


@dataclass(frozen=True)
class CacheStatistics:
    """What the cache of built programs did in this process.

    Parameters
    ----------
    hits
        Programs taken from the cache.
    misses
        Programs that it did not have.
    rebuilt
        Entries that were damaged or that the driver refused.
    stored
        Entries written.
    """

    hits: int
    misses: int
    rebuilt: int
    stored: int


def search_folders() -> list[str]:
    """Return the folders where pip puts OpenCL drivers, without duplicates.

    These are the ``site-packages`` folders and the environment's ``lib`` folder, where
    some wheels install shared libraries.
    """
    folders = [sysconfig.get_path("platlib"), sysconfig.get_path("purelib")]
    folders += [path for path in sys.path if path.endswith("-packages")]
    folders.append(str(Path(sys.prefix, "lib")))
    if site.ENABLE_USER_SITE and site.USER_BASE:
        folders.append(str(Path(site.USER_BASE, "lib")))
    return list(dict.fromkeys(folders))


def load() -> None:
    """Load the plug-in into this process; does nothing when it is loaded.

    Raises
    ------
    EnvironmentMismatchError
        If the plug-in was not built, or does not fit the installed TVM.
    """
    if _handle is not None:
        return
    # The plug-in uses TVM's runtime library.  Importing TVM calls autoload(), unless
    # this is that call or TVM_DEVICE_BACKEND_AUTOLOAD=0 forbids it.
    import_module("tvm")
    _load_once()


def _load_once() -> None:
    global _handle
    if _handle is not None:
        return
    import tvm_ffi

    # Ctrl-C in a function that TVM calls: unknown classes become a RuntimeError without a word,
    # which callers take for TVM's own.
    tvm_ffi.register_error("KeyboardInterrupt", KeyboardInterrupt)
    if not LIBRARY.exists():
        raise EnvironmentMismatchError(
            f"The OpenCL plug-in {LIBRARY} was not built.",
            remedy="Install tvmflow with pip (python -m pip install .), which compiles it.",
        )
    try:
        _handle = ctypes.CDLL(str(LIBRARY))
    except OSError as error:
        raise EnvironmentMismatchError(
            f"The OpenCL plug-in does not fit the installed TVM: {error}",
            remedy="Reinstall tvmflow with pip, which compiles the plug-in again.",
        ) from error
    tvm_ffi.register_error("DeviceError", NativeDeviceError)
    tvm_ffi.register_error("KernelBuildError", NativeKernelBuildError)
    configure(search_folders=search_folders())


def configure(**settings: object) -> None:
    """Change the plug-in's settings.

    Parameters
    ----------
    settings
        Before the first use of a device: ``library`` and ``device`` (as the environment
        variables ``TVMFLOW_OPENCL_LIBRARY`` and ``TVMFLOW_OPENCL_DEVICE``),
        ``search_folders`` (folders with drivers installed by pip).  At any time, for
        programs built afterwards: ``build_options`` (a string, appended to the options
        of the driver's compiler), ``cache`` (bool), ``cache_folder``,
        ``cache_limit_bytes``.

    Raises
    ------
    ValueError
        If a setting does not exist.
    """
    import tvm_ffi

    load()
    tvm_ffi.get_global_func("tvmflow.opencl.configure")(json.dumps(settings))


def cache_statistics() -> CacheStatistics:
    """Return what the cache of built programs did in this process so far."""
    import tvm_ffi

    load()
    return CacheStatistics(**json.loads(tvm_ffi.get_global_func("tvmflow.opencl.cache_stats")()))


def prebuild(module: Any, device_index: int = 0) -> int:
    """Build all kernels of a module and store them in the cache of built programs.

    The first call of the module is then as fast in every process as with a warm cache.

    Parameters
    ----------
    module
        A loaded module; the OpenCL modules among it and its imports are built.
    device_index
        The device to build for: ``opencl:<device_index>``.

    Returns
    -------
    int
        Number of OpenCL modules built.

    Raises
    ------
    KernelBuildError
        If the driver's compiler rejects a kernel.
    DeviceError
        If there is no such device.
    """
    import tvm_ffi

    load()
    return int(tvm_ffi.get_global_func("tvmflow.opencl.prebuild")(module, device_index))


def autoload() -> None:
    """Load the plug-in; called by ``import tvm``, which reports an error as a warning."""
    load()
