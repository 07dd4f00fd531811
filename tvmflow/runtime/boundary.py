"""Errors of TVM's runtime, turned into errors that a user can act on.

The OpenCL plug-in raises errors of the kinds ``KernelBuildError`` and
``DeviceError``, whose message is a sentence and, below it, a log.  They arrive as
the exceptions of those names, or as ``RuntimeError`` with the kind kept inside.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import DeviceError, KernelBuildError, TvmflowError
from .plugin import split_message

#: What to do where there is no device, by target.
NO_DEVICE_REMEDIES = {
    "opencl": "Install an OpenCL device for the CPU with `python -m pip install "
    "'tvmflow[cpu-opencl]'`, or the driver of your GPU.",
    "cuda": "Run on a machine with an NVIDIA GPU and its driver, or compile with `target=opencl`.",
}

_REFUSED_REMEDY = "Compile the model again for this device, or update its driver."

#: A driver's log can be endless; its beginning is what matters.
_LOG_LINES = 200
_LOG_COLUMNS = 160


def translate(error: BaseException, attempt: str, target: str) -> TvmflowError | None:
    """Return the tvmflow error for an error that came out of TVM.

    Parameters
    ----------
    error
        What was raised.
    attempt
        What was attempted, as the beginning of a sentence: ``"Running m.so"``.
    target
        The module's target.

    Returns
    -------
    TvmflowError or None
        ``None`` when the error is not about the device or its kernels.
    """
    inner = getattr(error, "__tvm_ffi_error__", None)
    if inner is None and isinstance(error, TvmflowError):
        return error
    kind = inner.kind if inner is not None else type(error).__name__
    text = inner.message if inner is not None else str(error)
    # The plug-in may know a remedy of its own.
    message, own_remedy, log = split_message(text.strip())
    if kind == "KernelBuildError":
        return KernelBuildError(
            f"{attempt} failed: {message}",
            remedy=own_remedy or _REFUSED_REMEDY,
            details=_shorten(log),
        )
    if kind == "DeviceError":
        return DeviceError(
            f"{attempt} failed: {message}",
            # Where there is no device, the plug-in has its own remedy; TVM's runtimes have none.
            remedy=own_remedy
            or (_REFUSED_REMEDY if target == "opencl" else NO_DEVICE_REMEDIES.get(target)),
            details=_shorten(log),
        )
    return None


@contextmanager
def translated(attempt: str, target: str) -> Iterator[None]:
    """Raise the tvmflow error for what comes out of TVM; parameters as of `translate`."""
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
    if len(lines) > _LOG_LINES:
        left_out = len(lines) - _LOG_LINES
        lines = [*lines[:_LOG_LINES], f"… {left_out} more lines"]
    return "\n".join(lines) or None
