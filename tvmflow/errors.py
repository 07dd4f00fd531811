"""Errors that a user can act on.

Every error of this package is one sentence about what was attempted, what was
expected and what was found, followed by a remedy.  The command line prints both
and exits with status 2; the library raises them.

Messages name options with their values as ``name=value`` between backquotes, which the command line
prints as flags (``--dtype fp16``) and `str` of an error as keywords (``dtype="fp16"``).
"""

from __future__ import annotations

import re
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
        return in_python("\n".join(parts))


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


class UnknownOptionError(CompileError, TypeError):
    """A keyword of a call is no option of a compilation."""


class ArtifactError(TvmflowError):
    """A compiled module cannot be read, or is of another version or target."""


class JournalError(TvmflowError):
    """A tuning journal, or a log to import, cannot be read or written."""


class DeviceError(TvmflowError):
    """No usable device, or the device's driver refused an operation."""


class KernelBuildError(DeviceError):
    """The driver's compiler rejected a kernel; the build log is in ``details``."""


class FarmError(TvmflowError):
    """A tracker, a server, all devices of a key, or a cluster that builds cannot be used."""


class AgentError(TvmflowError):
    """A phone or board cannot be reached, or its agent refused an operation.

    ``code`` is one of `tvmflow.agent.frames.Code`, or 0 if the agent did not answer; ``detail``
    depends on it.
    """

    def __init__(
        self,
        message: str,
        *,
        remedy: str | None = None,
        details: str | None = None,
        code: int = 0,
        detail: int = 0,
    ):
        super().__init__(message, remedy=remedy, details=details)
        self.code, self.detail = code, detail


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


#: Options that are no keywords in Python, and what to write instead.
_CALLS = {"ops": "tvmflow.ops.load({})"}


def in_python(text: str) -> str:
    """Return a message with its options as keywords of Python: ``shapes={"image": (1, 3)}``."""

    def keyword(match: re.Match[str]) -> str:
        name, value = match.groups()
        literal = _literal(name, value)
        return f"`{_CALLS.get(name, f'{name}={{}}').format(literal)}`"

    return re.sub(r"`(\w+)=([^`]+)`", keyword, text)


def _literal(option: str, value: str) -> str:
    """Return an option's value, as the command line takes it, as a literal of Python."""
    if value[0] in "\"'{[(":
        return value
    if "=" in value:
        name, _, rest = value.rpartition("=")
        return f"{{{_quoted(name)}: {_literal(option, rest)}}}"
    if option == "at":
        return f"[{', '.join(_tuple(each.split('x')) for each in value.split(','))}]"
    if option == "shapes":
        return _tuple(value.split(","))
    return _scalar(value)


def _tuple(values: Sequence[str]) -> str:
    return f"({', '.join(map(_scalar, values))}{',' * (len(values) == 1)})"


def _scalar(value: str) -> str:
    return value if re.fullmatch(r"-?\d+(\.\d+)?|True|False", value) else _quoted(value)


def _quoted(text: str) -> str:
    # Python's own quotes are single ones, documents have double ones.
    return f'"{text}"' if text.isprintable() and not {'"', "\\"} & {*text} else repr(text)
