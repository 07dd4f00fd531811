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
from pathlib import Path

from ..errors import DeviceError, EnvironmentMismatchError, KernelBuildError

#: The plug-in, built beside this file.
LIBRARY = Path(__file__).with_name("libtvmflow_opencl.so")

_handle: ctypes.CDLL | None = None


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
    global _handle
    if _handle is not None:
        return
    import tvm_ffi

    if not LIBRARY.exists():
        raise EnvironmentMismatchError(
            f"The OpenCL plug-in {LIBRARY} was not built.",
            remedy="install tvmflow with pip (python -m pip install .), which compiles it",
        )
    try:
        _handle = ctypes.CDLL(str(LIBRARY))
    except OSError as error:
        raise EnvironmentMismatchError(
            f"The OpenCL plug-in does not fit the installed TVM: {error}",
            remedy="reinstall tvmflow with pip, which compiles the plug-in again",
        ) from error
    tvm_ffi.register_error("DeviceError", DeviceError)
    tvm_ffi.register_error("KernelBuildError", KernelBuildError)
    configure(search_folders=search_folders())


def configure(**settings: object) -> None:
    """Change the plug-in's settings.

    Parameters
    ----------
    settings
        ``library``, ``device`` (as the environment variables ``TVMFLOW_OPENCL_LIBRARY``
        and ``TVMFLOW_OPENCL_DEVICE``; before the first use of a device),
        ``search_folders`` (list of folders with pip-installed drivers),
        ``build_options`` (appended to the driver's compiler options).
    """
    import tvm_ffi

    tvm_ffi.get_global_func("tvmflow.opencl.configure")(json.dumps(settings))


def autoload() -> None:
    """Load the plug-in; called by ``import tvm``, which reports an error as a warning."""
    load()
