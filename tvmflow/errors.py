"""Errors that a user can act on.

Every error of this package is one sentence about what was attempted, what was
expected and what was found, followed by a remedy.  The command line prints both
and exits with status 2; the library raises them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


class TvmflowError(Exception):
    """A mistake in the input or the environment, with the remedy for it.

    Parameters
    ----------
    message
        What was attempted, what was expected, what was got: one sentence.
    remedy
        What the user can do about it, one sentence or one command.
    details
        Longer text shown below the sentence, for example a compiler's build log.
    """

    exit_status = 2

    def __init__(self, message: str, *, remedy: str | None = None, details: str | None = None):
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.details = details

    def __str__(self) -> str:
        parts = [self.message]
        if self.remedy:
            parts.append(f"Remedy: {self.remedy}")
        if self.details:
            parts.append(self.details)
        return "\n".join(parts)


class EnvironmentMismatchError(TvmflowError, ImportError):
    """The installed packages do not fit together (for example two TVM wheels)."""


class ModelError(TvmflowError):
    """The ONNX file cannot be read, is damaged, or describes no computation."""


class UnsupportedModelError(ModelError):
    """The model uses operators, attributes or types that cannot be compiled right."""


class ShapeError(ModelError):
    """A dynamic dimension was left open, or a given shape does not fit the model."""


class OperatorError(TvmflowError):
    """A custom operator is defined wrongly, or was given what it does not take."""


class TargetError(TvmflowError):
    """The target, device preset or host triple is unknown or impossible."""


class CompileError(TvmflowError):
    """A stage of the pipeline could not do its work."""


class ArtifactError(TvmflowError):
    """A compiled module cannot be read, or is of another version or target."""


class JournalError(TvmflowError):
    """A tuning journal, or a log to import, cannot be read or written."""


class DeviceError(TvmflowError):
    """No usable device, or the device's driver refused an operation."""


class KernelBuildError(DeviceError):
    """The driver's compiler rejected a kernel; the build log is in ``details``."""


class FarmError(TvmflowError):
    """A tracker, a server or all devices of a key cannot be used."""


class InputError(TvmflowError):
    """An input has the wrong name, shape or dtype at run time."""


class VerificationError(TvmflowError):
    """Results differ from the reference by more than the tolerance."""

    exit_status = 1


def nearest(name: str, known: Sequence[str], aliases: Mapping[str, str]) -> str:
    """``; the nearest are …``, for an error about an unknown name; empty where none is near.

    Parameters
    ----------
    known
        The names that there are.
    aliases
        Names of them by other names that a user may have meant.
    """
    from difflib import get_close_matches

    names = [*known, *(alias for alias, meant in aliases.items() if meant in known)]
    near = list(dict.fromkeys(get_close_matches(name, names, n=4, cutoff=0.5)))
    return f"; the nearest are {', '.join(near)}" if near else ""
