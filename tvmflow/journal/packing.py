"""How records become bytes: JSON as a skeleton and its numbers, definitions, trials.

The skeleton of a document is the document with 0 for every number and truth value.  It is the
same for thousands of trials and stored once; a trial has the numbers, mostly of a byte each.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from json.encoder import encode_basestring_ascii as quote
from typing import Any

#: Longest definition or event, against a few bytes that unpack to gigabytes.
MAX_DATA_BYTES = 1 << 26

#: More than Python's JSON reader accepts.
MAX_NUMBER_BITS = 1 << 15

_FLOAT = struct.Struct("<d")
#: Marks of what is no whole number: see :func:`pack_numbers`.
_FALSE, _TRUE, _DOUBLE = 2, 6, 10


class MalformedError(ValueError):
    """Bytes with a right checksum that do not say what a record says."""


# -- skeletons ----------------------------------------------------------------------------------


def split(document: Any, numbers: list[Any]) -> str:
    """The skeleton of a JSON document as text; its numbers are appended to ``numbers``.

    Raises
    ------
    TypeError
        If a part of it is no JSON.
    """
    kind = type(document)
    if kind is int or kind is bool or kind is float:
        numbers.append(document)
        return "0"
    if kind is str:
        return quote(document)
    if document is None:
        return "null"
    if isinstance(document, Mapping):
        parts = []
        for name, value in document.items():
            if type(name) is not str:
                raise TypeError(f"a name must be a text, not {name!r}")
            parts.append(f"{quote(name)}:{split(value, numbers)}")
        return "{" + ",".join(parts) + "}"
    if isinstance(document, (list, tuple)):
        return "[" + ",".join([split(value, numbers) for value in document]) + "]"
    raise TypeError(f"{document!r} of type {kind.__name__} is no JSON")


def join(skeleton: Any, numbers: Iterator[Any]) -> Any:
    """The document of a parsed skeleton and its numbers; :func:`split` the other way round.

    Raises
    ------
    MalformedError
        If the numbers are too few.
    """
    if type(skeleton) is int:
        try:
            return next(numbers)
        except StopIteration:
            raise MalformedError("a record has fewer numbers than its skeleton") from None
    if type(skeleton) is dict:
        return {name: join(value, numbers) for name, value in skeleton.items()}
    if type(skeleton) is list:
        return [join(value, numbers) for value in skeleton]
    return skeleton


# -- numbers ------------------------------------------------------------------------------------


def pack_number(out: bytearray, value: int) -> None:
    """Append a number >= 0 in groups of seven bits, the lowest first."""
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)


def unpack_number(data: memoryview, at: int) -> tuple[int, int]:
    """A number, and where the next one begins.

    Raises
    ------
    MalformedError
        If it is cut.
    """
    value = shift = 0
    try:
        while (byte := data[at]) > 127:
            value |= (byte & 127) << shift
            shift += 7
            at += 1
            if shift > MAX_NUMBER_BITS:
                raise MalformedError("a number is too long")
    except IndexError:
        raise MalformedError("a number is cut") from None
    return value | byte << shift, at + 1


def pack_numbers(out: bytearray, numbers: Iterable[Any]) -> None:
    """Append numbers with their types, in the two lowest bits: 0, 1 or 2.

    0 is a whole number, 1 a negative one ``n`` as ``-1 - n``; 2 marks ``false``, ``true`` and a
    double, whose eight bytes follow.
    """
    for value in numbers:
        if value is False:
            out.append(_FALSE)
        elif value is True:
            out.append(_TRUE)
        elif type(value) is int:
            pack_number(out, value << 2 if value >= 0 else (-1 - value) << 2 | 1)
        else:
            out.append(_DOUBLE)
            out += _FLOAT.pack(value)


def unpack_numbers(data: memoryview, at: int) -> Iterator[Any]:
    """Numbers up to the end of ``data``.

    Raises
    ------
    MalformedError
        If one is cut or of no type.
    """
    end = len(data)
    while at < end:
        value, at = unpack_number(data, at)
        kind = value & 3
        if kind == 0:
            yield value >> 2
        elif kind == 1:
            yield -1 - (value >> 2)
        elif value == _DOUBLE and at + 8 <= end:
            yield _FLOAT.unpack_from(data, at)[0]
            at += 8
        elif value in (_FALSE, _TRUE):
            yield value == _TRUE
        else:
            raise MalformedError(f"there is no number of the kind {value}")


# -- text, maybe compressed ---------------------------------------------------------------------


def pack_data(data: bytes) -> bytes:
    """Bytes behind one that says how they are stored: 0 as they are, 1 deflated."""
    if len(data) > 100:
        packed = zlib.compress(data, 9)
        if len(packed) < len(data):
            return b"\x01" + packed
    return b"\x00" + data


def unpack_data(payload: memoryview) -> bytes:
    """What :func:`pack_data` packed.

    Raises
    ------
    MalformedError
        If it is damaged or too long.
    """
    if len(payload) and payload[0] == 0:
        return bytes(payload[1:])
    if not len(payload) or payload[0] != 1:
        raise MalformedError("data is stored in an unknown way")
    inflate = zlib.decompressobj()
    try:
        data = inflate.decompress(payload[1:], MAX_DATA_BYTES)
    except zlib.error as error:
        raise MalformedError(f"data could not be unpacked: {error}") from None
    if not inflate.eof:
        raise MalformedError(f"data is cut, or longer than {MAX_DATA_BYTES} bytes")
    return data


def parse(data: bytes) -> Any:
    """JSON; what is none is :class:`MalformedError`."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise MalformedError(f"data is no JSON: {error}") from None


# -- blocks of records --------------------------------------------------------------------------


def pack_block(items: Iterable[tuple[int, bytes]]) -> bytes:
    """Records by type and payload, deflated together."""
    out = bytearray()
    for kind, payload in items:
        out.append(kind)
        pack_number(out, len(payload))
        out += payload
    return pack_data(bytes(out))


def unpack_block(payload: memoryview) -> list[tuple[int, memoryview]]:
    """The same, the other way round.

    Raises
    ------
    MalformedError
        If it cannot be unpacked.
    """
    data = memoryview(unpack_data(payload))
    items, at = [], 0
    while at < len(data):
        kind = data[at]
        length, at = unpack_number(data, at + 1)
        if at + length > len(data):
            raise MalformedError("a block is cut")
        items.append((kind, data[at : at + length]))
        at += length
    return items
