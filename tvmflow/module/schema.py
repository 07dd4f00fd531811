"""Schemas of JSON files, checked when the files are read.

A schema is a function that takes a value and its path (``inputs[0].shape``), and raises
:class:`SchemaError` if the value does not fit.  Schemas are composed::

    shape = list_of(whole(0), most=8)
    tensor = record({"name": text, "shape": shape}, optional={"scope": maybe(text)})
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, NoReturn

Schema = Callable[[object, str], None]

#: Limit of texts that are parsed; the metadata of the largest networks has a few megabytes.
MOST_BYTES = 64 << 20

#: Surrogates, which JSON can escape, but which are no valid text by themselves.
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class SchemaError(ValueError):
    """Raised for a value that does not fit its schema; the message has its path and the reason."""


def parse(content: bytes) -> Any:
    """Parse a JSON text, more strictly than Python's parser.

    Raises `SchemaError` if it is no JSON, is nested too deeply, too long, or has numbers or
    characters that JSON does not have.
    """
    if len(content) > MOST_BYTES:
        raise SchemaError(f"it is {len(content)} bytes long, more than {MOST_BYTES}")
    try:
        value = json.loads(content.decode(), parse_constant=_no_number)
        if _SURROGATE.search(content):
            json.dumps(value, ensure_ascii=False).encode()
    except SchemaError:
        raise
    except RecursionError:
        raise SchemaError("it is nested too deeply") from None
    except UnicodeError:
        raise SchemaError("it is not UTF-8") from None
    except ValueError as error:
        raise SchemaError(f"it is not JSON: {error}") from None
    return value


def _no_number(name: str) -> NoReturn:
    raise SchemaError(f"it has the number {name}")


def _value(expected: str, fits: Callable[[object], bool]) -> Schema:
    """Return the schema of a scalar value."""

    def check(value: object, where: str) -> None:
        if not fits(value):
            raise _wrong(value, where, expected)

    return check


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 2**63


#: Schema of any JSON value.
anything = _value("anything", lambda value: True)
text = _value("a text", lambda value: isinstance(value, str))
flag = _value("true or false", lambda value: isinstance(value, bool))
#: Schema of a finite number that is not negative.
number = _value("a number of at least 0", _is_number)


def whole(low: int = 0, high: int = 2**63 - 1) -> Schema:
    """Return the schema of an integer within bounds, both included."""
    return _value(
        f"a whole number from {low} to {high}",
        lambda v: isinstance(v, int) and not isinstance(v, bool) and low <= v <= high,
    )


def one_of(values: Collection[str]) -> Schema:
    """Return the schema of a text that is one of these."""
    return _value(f"one of {', '.join(values)}", lambda v: isinstance(v, str) and v in values)


def matching(pattern: str, expected: str) -> Schema:
    """Return the schema of a text that matches a regular expression."""
    compiled = re.compile(pattern)
    return _value(expected, lambda v: isinstance(v, str) and compiled.fullmatch(v) is not None)


def maybe(schema: Schema) -> Schema:
    """Return the schema of null or a value that fits another schema."""

    def check(value: object, where: str) -> None:
        if value is not None:
            schema(value, where)

    return check


def list_of(schema: Schema, most: int | None = None) -> Schema:
    """Return the schema of a list with items of a schema, and at most ``most`` of them."""

    def check(value: object, where: str) -> None:
        if not isinstance(value, list) or (most is not None and len(value) > most):
            limit = "" if most is None else f" of at most {most}"
            raise _wrong(value, where, f"a list{limit}")
        for index, item in enumerate(value):
            schema(item, f"{where}[{index}]")

    return check


def named(schema: Schema) -> Schema:
    """Return the schema of an object with any names and values of a schema."""

    def check(value: object, where: str) -> None:
        if not isinstance(value, dict):
            raise _wrong(value, where, "an object")
        for name, item in value.items():
            schema(item, f"{where}.{name[:60]}")

    return check


def record(required: Mapping[str, Schema], optional: Mapping[str, Schema] | None = None) -> Schema:
    """Return the schema of an object with these names; other names are allowed."""
    schemas = {**required, **(optional or {})}

    def check(value: object, where: str) -> None:
        if not isinstance(value, dict):
            raise _wrong(value, where, "an object")
        if missing := [name for name in required if name not in value]:
            raise SchemaError(f"{where or 'it'} lacks {', '.join(missing)}")
        for name, schema in schemas.items():
            if name in value:
                schema(value[name], f"{where}.{name}" if where else name)

    return check


def either(*schemas: Schema) -> Schema:
    """Return the schema of a value that fits at least one of several schemas."""

    def check(value: object, where: str) -> None:
        errors = []
        for schema in schemas:
            try:
                return schema(value, where)
            except SchemaError as error:
                errors.append(str(error))
        raise SchemaError(" or ".join(errors))

    return check


def _wrong(value: object, where: str, expected: str) -> SchemaError:
    shown = repr(value) if not isinstance(value, int) or abs(value) < 10**30 else "a huge number"
    if len(shown) > 60:
        shown = f"{shown[:57]}..."
    return SchemaError(f"{where or 'it'} is {shown}, expected {expected}")
