"""Loading of the OpenCL plug-in into TVM, and translation of runtime errors.

TVM calls :func:`autoload` at ``import tvm``, in its sub-processes and RPC servers
too, because this package declares it in the entry-point group ``tvm.backends``.
Loading registers the device API and the modules of kind ``opencl``; no OpenCL
library is opened before a device is used.

The plug-in raises errors of the kinds ``KernelBuildError`` and ``DeviceError``, whose text has
the message in its first line, the remedy in a line that begins with ``Remedy:``, and a log
below.  They arrive as classes registered here, or as ``RuntimeError`` with the kind inside.
"""

from __future__ import annotations

import ctypes
import json
import site
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

from .._versions import install_command
from ..errors import DeviceError, EnvironmentMismatchError, KernelBuildError, TvmflowError
from . import cuda_compiler

#: Path of the plug-in, which is built next to this file.
LIBRARY = Path(__file__).with_name("libtvmflow_opencl.so")


def no_device_remedy(target: str) -> str | None:
    """Return the remedy for a target without a device."""
    # Not a constant, because the command is looked up in the package's metadata.
    opencl = (
        f"Install an OpenCL device for the CPU with `{install_command('cpu-opencl')}`, or the "
        "driver of your GPU."
    )
    cuda = "Run on a machine with an NVIDIA GPU and its driver, or compile with `target=opencl`."
    return {"opencl": opencl, "cuda": cuda}.get(target)


_REFUSED_REMEDY = "Compile the model again for this device, or update its driver."

#: Limits of a driver's log in messages; its beginning matters most.
_LOG_LINES = 200
_LOG_COLUMNS = 160

_handle: ctypes.CDLL | None = None


def search_folders() -> list[str]:
    """Return the folders in which wheels install OpenCL drivers: ``site-packages`` and ``lib``."""
    folders = [sysconfig.get_path("platlib"), sysconfig.get_path("purelib")]
    folders += [*(p for p in sys.path if p.endswith("-packages")), str(Path(sys.prefix, "lib"))]
    if site.ENABLE_USER_SITE and site.USER_BASE:
        folders.append(str(Path(site.USER_BASE, "lib")))
    return list(dict.fromkeys(folders))


def load() -> None:
    """Load the plug-in into this process; does nothing when it is loaded.

    Raises an `EnvironmentMismatchError` if it was not built, or does not fit the installed TVM.
    """
    global _handle
    # The plug-in uses TVM's runtime library.  Importing TVM calls autoload(), unless
    # this is that call or TVM_DEVICE_BACKEND_AUTOLOAD=0 forbids it.
    if _handle is None:
        import_module("tvm")
    if _handle is not None:
        return
    import tvm_ffi

    # Ctrl-C in a function that TVM calls: TVM turns unknown classes into an empty RuntimeError.
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
    # TVM registers its own function under this name, which is replaced.
    import_module("tvm.support.nvcc")
    tvm_ffi.register_global_func("tvm_callback_cuda_compile", _compile_cuda, override=True)
    tvm_ffi.register_error("DeviceError", NativeDeviceError)
    tvm_ffi.register_error("KernelBuildError", NativeKernelBuildError)
    configure(search_folders=search_folders())


def _compile_cuda(source: str) -> bytes:
    try:
        return cuda_compiler.compile_source(source)
    except KernelBuildError as error:
        raise NativeKernelBuildError(str(error)) from error
    except DeviceError as error:
        raise NativeDeviceError(str(error)) from error


def autoload() -> None:
    """Load the plug-in; called by ``import tvm``, which reports an error as a warning."""
    load()


def configure(**settings: object) -> None:
    """Change the plug-in's settings; raises `ValueError` for an unknown one.

    Before the first use of a device: ``library`` and ``device`` (as the environment variables
    ``TVMFLOW_OPENCL_LIBRARY`` and ``TVMFLOW_OPENCL_DEVICE``), ``search_folders`` (folders with
    drivers installed by pip).  At any time, for programs built afterwards: ``build_options`` (a
    string, appended to the options of the driver's compiler), ``cache`` (bool), ``cache_folder``,
    ``cache_limit_bytes``.
    """
    import tvm_ffi

    load()
    tvm_ffi.get_global_func("tvmflow.opencl.configure")(json.dumps(settings))


class _NativeError(TvmflowError):
    """An error raised in C++; TVM creates it from the text."""

    def __init__(self, text: str):
        message, remedy, details = split_message(text)
        super().__init__(message, remedy=remedy, details=details)


class NativeDeviceError(DeviceError, _NativeError):
    """A :class:`~tvmflow.errors.DeviceError` raised in C++."""


class NativeKernelBuildError(KernelBuildError, _NativeError):
    """A :class:`~tvmflow.errors.KernelBuildError` raised in C++, with the build log."""


def split_message(text: str) -> tuple[str, str | None, str | None]:
    """Return the message, the remedy and the details of an error raised in C++."""
    message, _, rest = text.partition("\n")
    remedy = None
    if rest.startswith("Remedy: "):
        remedy, _, rest = rest.removeprefix("Remedy: ").partition("\n")
    return message, remedy, rest or None


def translate(error: BaseException, attempt: str, target: str) -> TvmflowError | None:
    """Translate a TVM error into a `TvmflowError`; ``None`` if it is not about a device.

    The message begins with the attempt (``"Running m.so"``), and the remedy fits the target.
    """
    inner = getattr(error, "__tvm_ffi_error__", None)
    if inner is None and isinstance(error, TvmflowError):
        return error
    kind = inner.kind if inner is not None else type(error).__name__
    ours = {"KernelBuildError": KernelBuildError, "DeviceError": DeviceError}.get(kind)
    if ours is None:
        return None
    text = inner.message if inner is not None else str(error)
    # The plug-in may know a remedy, as for a missing device; TVM's runtimes have none.
    message, own_remedy, log = split_message(text.strip())
    is_refused = ours is KernelBuildError or target == "opencl"
    remedy = _REFUSED_REMEDY if is_refused else no_device_remedy(target)
    return ours(f"{attempt} failed: {message}", remedy=own_remedy or remedy, details=_shorten(log))


@contextmanager
def translated(attempt: str, target: str) -> Iterator[None]:
    """Translate errors of TVM that the block raises; parameters as for `translate`."""
    try:
        yield
    except Exception as error:
        if (ours := translate(error, attempt, target)) is not None:
            raise ours from error
        raise


def _shorten(log: str | None) -> str | None:
    lines = [
        line if len(line) <= _LOG_COLUMNS else f"{line[: _LOG_COLUMNS - 1]}…"
        for line in (log or "").strip().splitlines()
    ]
    if (left_out := len(lines) - _LOG_LINES) > 0:
        lines = [*lines[:_LOG_LINES], f"… {left_out} more lines"]
    return "\n".join(lines) or None
