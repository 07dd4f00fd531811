"""What JSON in a file has to look like, said once and checked when it is read.

A schema is a function that takes a value and where it stands (``inputs[0].shape``), and raises
:class:`SchemaError` if the value is not what it should be.  Larger schemas are made of smaller
ones::

    shape = list_of(whole(0), most=8)
    tensor = record({"name": text, "shape": shape}, optional={"scope": maybe(text)})
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, NoReturn

Schema = Callable[[Any, str], None]

#: Larger texts are not parsed: the largest networks' descriptions have a few megabytes.
MOST_BYTES = 64 << 20

#: Halves of a character that JSON can escape, but no text can hold.
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class SchemaError(ValueError):
    """A value is not what its schema says; the text says where and why."""


def parse(content: bytes) -> Any:
    """Return what a JSON text says; strict where Python's parser is not.

    Raises
    ------
    SchemaError
        If it is no JSON, is nested too deeply, too long, or holds numbers or characters that JSON
        does not have.
    """
    if len(content) > MOST_BYTES:
        raise SchemaError(f"it is {len(content)} bytes long, more than {MOST_BYTES}")
    try:
        value = json.loads(content.decode(), parse_constant=_no_number)
        if _SURROGATE.search(content):
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise SchemaError("it is nested too deeply") from None
    except UnicodeError:
        raise SchemaError("it is not UTF-8") from None
    except ValueError as error:
        if isinstance(error, SchemaError):
            raise
        raise SchemaError(f"it is not JSON: {error}") from None
    return value


def _no_number(name: str) -> NoReturn:
    raise SchemaError(f"it has the number {name}")


def anything(value: Any, where: str) -> None:
    """Any JSON."""


def text(value: Any, where: str) -> None:
    """A text."""
    if not isinstance(value, str):
        raise _wrong(value, where, "a text")


def flag(value: Any, where: str) -> None:
    """True or false."""
    if not isinstance(value, bool):
        raise _wrong(value, where, "true or false")


def number(value: Any, where: str) -> None:
    """A finite number, not below zero."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong(value, where, "a number")
    if (isinstance(value, float) and not math.isfinite(value)) or not 0 <= value < 2**63:
        raise _wrong(value, where, "a number from 0 on")


def whole(low: int = 0, high: int = 2**63 - 1) -> Schema:
    """A whole number within bounds."""

    def check(value: Any, where: str) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise _wrong(value, where, f"a whole number from {low} to {high}")

    return check


def one_of(values: Collection[Any]) -> Schema:
    """One of some texts."""

    def check(value: Any, where: str) -> None:
        if not isinstance(value, str) or value not in values:
            raise _wrong(value, where, f"one of {', '.join(map(str, values))}")

    return check


def matching(pattern: str, what: str) -> Schema:
    """A text of some form."""
    compiled = re.compile(pattern)

    def check(value: Any, where: str) -> None:
        if not isinstance(value, str) or not compiled.fullmatch(value):
            raise _wrong(value, where, what)

    return check


def maybe(schema: Schema) -> Schema:
    """Null, or what the schema says."""

    def check(value: Any, where: str) -> None:
        if value is not None:
            schema(value, where)

    return check


def list_of(schema: Schema, most: int | None = None) -> Schema:
    """A list."""

    def check(value: Any, where: str) -> None:
        if not isinstance(value, list) or (most is not None and len(value) > most):
            limit = "" if most is None else f" of at most {most}"
            raise _wrong(value, where, f"a list{limit}")
        for index, item in enumerate(value):
            schema(item, f"{where}[{index}]")

    return check


def named(schema: Schema) -> Schema:
    """An object with any names."""

    def check(value: Any, where: str) -> None:
        if not isinstance(value, dict):
            raise _wrong(value, where, "an object")
        for name, item in value.items():
            schema(item, f"{where}.{name[:60]}")

    return check


def record(required: Mapping[str, Schema], optional: Mapping[str, Schema] | None = None) -> Schema:
    """An object with these names; it may have others."""
    schemas = {**required, **(optional or {})}

    def check(value: Any, where: str) -> None:
        if not isinstance(value, dict):
            raise _wrong(value, where, "an object")
        if missing := [name for name in required if name not in value]:
            raise SchemaError(f"{where or 'it'} lacks {', '.join(missing)}")
        for name, schema in schemas.items():
            if name in value:
                schema(value[name], f"{where}.{name}" if where else name)

    return check


def either(*schemas: Schema) -> Schema:
    """What one of some schemas says."""

    def check(value: Any, where: str) -> None:
        errors = []
        for schema in schemas:
            try:
                return schema(value, where)
            except SchemaError as error:
                errors.append(str(error))
        raise SchemaError(" or ".join(errors))

    return check


def _wrong(value: Any, where: str, expected: str) -> SchemaError:
    shown = repr(value) if not isinstance(value, int) or abs(value) < 10**30 else "a huge number"
    if len(shown) > 60:
        shown = f"{shown[:57]}..."
    return SchemaError(f"{where or 'it'} is {shown}, expected {expected}")
