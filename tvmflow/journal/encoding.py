"""Encoding of records as bytes: trials, events, and definitions that trials share by hash.

A trial refers to a *context*, and that to a workload, a target, a device, the versions of a
toolchain and the skeleton of the trial's document, ``[knobs, source, provenance, original]``.  A
skeleton is the document with 0 for every number and truth value: thousands of trials have the same
one, which is stored once; a trial has the numbers, mostly of a byte each.

Functions that read bytes raise :class:`MalformedError` if the bytes do not encode a record.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from .records import (
    ContentAddressed,
    Device,
    Error,
    Event,
    Original,
    Target,
    Trial,
    Workload,
    cost_of,
    digest,
)

#: Kinds of definitions by their first byte.
KINDS = {1: "workload", 2: "target", 3: "device", 4: "toolchain", 5: "skeleton", 6: "context"}
_NUMBERS = {name: number for number, name in KINDS.items()}

#: Length of the key in bytes by which a trial refers to its context.
SHORT = 8
#: Longest definition or event, which limits a few bytes that unpack to gigabytes.
MAX_DATA_BYTES = 1 << 26
#: Most bits of an integer; more than Python's JSON reader accepts.
MAX_NUMBER_BITS = 1 << 15

_TRIAL_HEAD = struct.Struct("<8sdd")
_FLOAT = struct.Struct("<d")
#: Codes of values that are not integers: see :func:`pack_numbers`.
_FALSE, _TRUE, _DOUBLE = 2, 6, 10

Number = bool | int | float
K = TypeVar("K", bound=ContentAddressed)


class MalformedError(ValueError):
    """Raised for bytes with a correct checksum that do not encode a record."""


class MissingError(MalformedError):
    """Raised if a record refers to a definition that is missing or damaged."""


# -- numbers ------------------------------------------------------------------------------------


def pack_number(out: bytearray, value: int) -> None:
    """Append a number >= 0 in groups of seven bits, the lowest group first."""
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)


def unpack_number(data: memoryview, at: int) -> tuple[int, int]:
    """Return a number, and the offset of the next one."""
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


def pack_numbers(out: bytearray, numbers: Iterable[Number]) -> None:
    """Append numbers, each with its type in the two lowest bits: 0, 1 or 2.

    0 is a non-negative integer, 1 a negative integer ``n`` as ``-1 - n``; 2 marks ``false``,
    ``true`` and a double, whose eight bytes follow.
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


def unpack_numbers(data: memoryview, at: int) -> Iterator[Number]:
    """Yield numbers up to the end of ``data``."""
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


# -- JSON, and its skeletons --------------------------------------------------------------------


def parse(data: bytes) -> Any:
    """Parse JSON."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise MalformedError(f"data is no JSON: {error}") from None


def split(document: object, numbers: list[Number]) -> str:
    """Return a JSON document's skeleton and append its numbers; `TypeError` if it is not JSON."""

    def without_numbers(part: object) -> object:
        kind = type(part)
        if kind is int or kind is bool or kind is float:
            numbers.append(part)  # type: ignore[arg-type]
            return 0
        if kind is str or part is None:
            return part
        if isinstance(part, Mapping):
            for name in part:
                if type(name) is not str:
                    raise TypeError(f"a name must be a text, not {name!r}")
            return {name: without_numbers(value) for name, value in part.items()}
        if isinstance(part, (list, tuple)):
            return [without_numbers(value) for value in part]
        raise TypeError(f"{part!r} of type {kind.__name__} is no JSON")

    return json.dumps(without_numbers(document), separators=(",", ":"))


def join(skeleton: bytes, numbers: Iterator[Number]) -> object:
    """Join a skeleton and its numbers to a document, the inverse of :func:`split`."""

    def number(_zero: str) -> Number:
        if (value := next(numbers, None)) is None:
            raise MalformedError("a record has fewer numbers than its skeleton")
        return value

    return json.loads(skeleton, parse_int=number)


# -- data, optionally compressed, and blocks of records ------------------------------------------


def pack_data(data: bytes) -> bytes:
    """Prepend a byte to ``data`` that gives its storage: 0 uncompressed, 1 deflated."""
    if len(data) > 100:
        packed = zlib.compress(data, 9)
        if len(packed) < len(data):
            return b"\x01" + packed
    return b"\x00" + data


def unpack_data(payload: memoryview) -> bytes:
    """Return the data that :func:`pack_data` packed."""
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


def pack_block(items: Iterable[tuple[int, bytes]]) -> bytes:
    """Pack records, given by type and payload, and deflate them as one."""
    out = bytearray()
    for kind, payload in items:
        out.append(kind)
        pack_number(out, len(payload))
        out += payload
    return pack_data(bytes(out))


def unpack_block(payload: memoryview) -> list[tuple[int, memoryview]]:
    """Return the records that :func:`pack_block` packed."""
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


# -- definitions --------------------------------------------------------------------------------


def pack_definition(kind: str, data: bytes, pack: bool) -> bytes:
    """Pack a definition; within a block, which is deflated as a whole, without ``pack``."""
    return bytes([_NUMBERS[kind]]) + (pack_data(data) if pack else b"\0" + data)


def unpack_definition(payload: memoryview) -> tuple[str, bytes, bytes]:
    """Return the kind, key and data of a definition."""
    kind = KINDS.get(payload[0]) if len(payload) else None
    if kind is None:
        raise MalformedError("a definition is of an unknown kind")
    data = unpack_data(payload[1:])
    return kind, digest(kind, data), data


def read_content_addressed(cls: type[K], data: bytes) -> K:
    """Read a workload, target or device from its canonical form."""
    fields = parse(data)
    names = cls.__dataclass_fields__  # type: ignore[attr-defined]
    if not isinstance(fields, dict) or fields.keys() != names.keys():
        raise MalformedError(f"a {cls.kind_of_definition()} has other fields")
    value = cls(**fields)
    try:
        value.check()
    except TypeError as error:
        raise MalformedError(str(error)) from None
    return value


@dataclass(frozen=True)
class Context:
    """Definitions that several trials share."""

    workload: Workload
    target: Target
    device: Device
    toolchain: dict[str, str]
    #: Skeleton of the trials' documents: JSON of a list.
    skeleton: bytes


# -- trials and events --------------------------------------------------------------------------


def trial_document(trial: Trial, numbers: list[Number]) -> str:
    """Return the skeleton of a trial's document; append its numbers to ``numbers``."""
    return split([trial.knobs, trial.source, trial.provenance, trial.original], numbers)


def pack_trial(short: bytes, trial: Trial, numbers: list[Number]) -> bytes:
    """Pack a trial, which refers to its context by the first bytes of its key."""
    out = bytearray(_TRIAL_HEAD.pack(short, trial.timestamp, trial.seconds))
    pack_number(out, trial.error)
    pack_number(out, len(trial.costs))
    out += struct.pack(f"<{len(trial.costs)}d", *trial.costs)
    message = trial.message.encode("utf-8", "replace")
    pack_number(out, len(message))
    out += message
    pack_numbers(out, numbers)
    return bytes(out)


def _measured(payload: memoryview) -> tuple[int, tuple[float, ...], int]:
    """Return error and costs of a trial, and the offset of its message."""
    error, at = unpack_number(payload, _TRIAL_HEAD.size)
    count, at = unpack_number(payload, at)
    end = at + count * _FLOAT.size
    if end > len(payload):
        raise MalformedError("the costs of a trial are cut")
    return error, struct.unpack_from(f"<{count}d", payload, at), end


def trial_cost(payload: memoryview) -> tuple[bytes, float]:
    """Return the context's short key and the cost of a trial, without decoding the rest."""
    if len(payload) < _TRIAL_HEAD.size:
        raise MalformedError("a trial is cut")
    error, costs, _ = _measured(payload)
    return bytes(payload[:SHORT]), cost_of(costs, error)


def unpack_trial(payload: memoryview, context: Context) -> Trial:
    """Return a trial with its context's definitions."""
    _, timestamp, seconds = _TRIAL_HEAD.unpack_from(payload, 0)
    error, costs, at = _measured(payload)
    length, at = unpack_number(payload, at)
    if at + length > len(payload):
        raise MalformedError("the message of a trial is cut")
    message = bytes(payload[at : at + length]).decode("utf-8", "replace")
    numbers = unpack_numbers(payload, at + length)
    document = join(context.skeleton, numbers)
    if next(numbers, None) is not None or not isinstance(document, list) or len(document) != 4:
        raise MalformedError("a trial has other numbers than its skeleton")
    knobs, source, provenance, original = document
    types = (type(knobs), type(source), type(provenance))
    is_pair = isinstance(original, list) and len(original) == 2 and isinstance(original[0], str)
    if types != (dict, str, dict) or not (original is None or is_pair):
        raise MalformedError("a trial is not of its form")
    return Trial(
        *(context.workload, context.target, context.device, knobs, costs, Error(error)),
        *(message, timestamp, seconds, context.toolchain, source, provenance),
        original=None if original is None else Original(*original),
    )


def pack_event(event: Event) -> bytes:
    """Pack an event, which refers to its device by key."""
    device = None if event.device is None else event.device.key.hex()
    document = [event.kind, event.timestamp, device, dict(event.details)]
    return pack_data(json.dumps(document).encode())


def unpack_event(payload: memoryview, device_of: Callable[[bytes], Device]) -> Event:
    """Return an event; its device is ``None`` if ``device_of`` does not find it."""
    document = parse(unpack_data(payload))
    try:
        kind, timestamp, key, details = document
        try:
            device = None if key is None else device_of(bytes.fromhex(key))
        except MissingError:
            device = None
        return Event(str(kind), float(timestamp), device, dict(details))
    except (TypeError, ValueError) as error:
        raise MalformedError(f"an event is not of its form: {error}") from None
