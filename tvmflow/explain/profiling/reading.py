"""Read profiles from JSON, and refuse what does not fit the records."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import types
from collections.abc import Mapping
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints

from ...errors import ArtifactError
from ...runtime.regular_files import MOST_CONTENT_BYTES, read_text
from .record import DERIVED, FORMAT, Profile


def read_profile(path: str | os.PathLike[str]) -> Profile:
    """Read a file that ``tvmflow profile --json`` was written to.

    `ArtifactError` if there is no such file, or it holds no profile of this format.
    """
    try:
        return from_json(json.loads(read_text(path, MOST_CONTENT_BYTES)))
    except OSError as error:
        raise ArtifactError(
            f"Reading the profile {path} failed: {error.strerror or error}.",
            remedy="Name a file that `tvmflow profile OUT.so --json` was written to.",
        ) from error
    except (ValueError, OverflowError, RecursionError) as error:
        no_json = isinstance(error, (json.JSONDecodeError, UnicodeDecodeError))
        reason = f"it is no JSON ({error})" if no_json else str(error)
        if isinstance(error, RecursionError):
            reason = "it is nested too deeply"
        raise ArtifactError(
            f"Reading the profile {path} failed: a profile was expected, but {reason}.",
            remedy="Measure again with `tvmflow profile OUT.so --json` of this version.",
        ) from error


def from_json(content: object) -> Profile:
    """Convert the result of `Profile.to_json` back; `ValueError` if it has another form."""
    if not isinstance(content, Mapping) or "format" not in content:
        raise ValueError("it has no format")
    if content["format"] != FORMAT:
        raise ValueError(f"it has format {content['format']!r}, expected {FORMAT}")
    rest = {key: value for key, value in content.items() if key not in ("format", *DERIVED)}
    return typed(Profile, rest)


def typed(hint: Any, value: Any, where: str = "") -> Any:
    """Convert a JSON value, which has neither records nor tuples, to an annotation's type.

    `ValueError` if it does not fit; ``where`` names the value in the message.
    """
    kind, of = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if kind is types.UnionType:
        return None if value is None else typed(of[0], value, where)
    if kind is tuple and isinstance(value, (list, tuple)):
        return tuple(typed(of[0], one, f"{where}[{n}]") for n, one in enumerate(value))
    if isinstance(value, Mapping):
        if dataclasses.is_dataclass(hint):
            return _record(hint, value, where)
        if kind in (dict, Mapping):
            return {key: typed(of[1], one, f"{where}.{key}") for key, one in value.items()}
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if hint is float and number and math.isfinite(value):
        return value
    if hint in (bool, int, str) and type(value) is hint:
        return value
    raise ValueError(f"{where or 'it'} is {str(value)[:40]!r}")


def _record(kind: Any, values: Mapping[str, Any], where: str) -> Any:
    hints = _hints(kind)
    inside = f"{where}." if where else ""
    for field in dataclasses.fields(kind):
        missing = field.default is field.default_factory is dataclasses.MISSING
        if missing and field.name not in values:
            raise ValueError(f"{inside}{field.name} is missing")
    if unknown := [name for name in values if name not in hints]:
        raise ValueError(f"{inside}{unknown[0]} is unknown")
    return kind(**{k: typed(hints[k], v, f"{inside}{k}") for k, v in values.items()})


_hints = cache(get_type_hints)
