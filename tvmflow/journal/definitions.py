"""Definitions: what trials have in common, stored once and referred to by hash.

A trial refers to a *context*, and that to a workload, a target, a device, the versions of a
toolchain and the skeleton of the trial's document: ``[knobs, source, provenance, original]``.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from .packing import (
    MalformedError,
    join,
    pack_data,
    pack_number,
    pack_numbers,
    parse,
    split,
    unpack_data,
    unpack_number,
    unpack_numbers,
)
from .records import (
    Device,
    Error,
    Event,
    Keyed,
    Original,
    Target,
    Trial,
    Workload,
    canonical,
    cost_of,
    digest,
)

#: Kinds of definitions, by the byte that a definition begins with.
KINDS = {1: "workload", 2: "target", 3: "device", 4: "toolchain", 5: "skeleton", 6: "context"}
_NUMBERS = {name: number for number, name in KINDS.items()}
_CLASSES: dict[str, type[Keyed]] = {"workload": Workload, "target": Target, "device": Device}

#: Bytes of a key by which a trial refers to its context.
SHORT = 8
_HEAD = struct.Struct("<8sdd")
_COST = struct.Struct("<d")

T = TypeVar("T", bound=Keyed)


class MissingError(MalformedError):
    """A record refers to a definition that is not there, or damaged."""


@dataclass(frozen=True)
class Context:
    """What a trial refers to."""

    workload: Workload
    target: Target
    device: Device
    toolchain: dict[str, str]
    #: The parsed skeleton of its document.
    skeleton: Any


def definition(kind: str, data: bytes, pack: bool) -> bytes:
    """A definition as a payload; in a block, which is packed as a whole, it is not packed."""
    return bytes([_NUMBERS[kind]]) + (pack_data(data) if pack else b"\0" + data)


def read_definition(payload: memoryview) -> tuple[str, bytes, bytes]:
    """Kind, key and data of a definition.

    Raises
    ------
    MalformedError
        If it is of an unknown kind.
    """
    kind = KINDS.get(payload[0]) if len(payload) else None
    if kind is None:
        raise MalformedError("a definition is of an unknown kind")
    data = unpack_data(payload[1:])
    return kind, digest(kind, data), data


class Definitions:
    """Definitions by key, parsed when they are first asked for.

    Parameters
    ----------
    find
        Payload of the frame of a definition by the first bytes of its key.
    """

    def __init__(self, find: Callable[[bytes], memoryview | None]):
        self._find = find
        self._known: dict[bytes, Any] = {}
        self._contexts: dict[bytes, Context] = {}

    def add(self, value: Keyed) -> None:
        """Remember a definition that need not be read."""
        self._known[value.key] = value

    def context(self, short: bytes) -> Context:
        """The context with a key that begins so.

        Raises
        ------
        MissingError
            If it, or what it refers to, is not there.
        MalformedError
            If one of them is something else.
        """
        if (context := self._contexts.get(short)) is None:
            data = self._data("context", short)
            keys = [data[at : at + 16] for at in range(0, 80, 16)]
            if len(data) != 80:
                raise MalformedError("a context refers to another number of definitions")
            context = Context(
                self.keyed(Workload, keys[0]),
                self.keyed(Target, keys[1]),
                self.keyed(Device, keys[2]),
                self._json("toolchain", keys[3], dict),
                self._json("skeleton", keys[4], list),
            )
            self._contexts[short] = context
        return context

    def keyed(self, cls: type[T], key: bytes) -> T:
        """A workload, target or device."""
        if (value := self._known.get(key)) is None:
            value = read_keyed(cls, self._data(cls.__name__.lower(), key))
            self._known[key] = value
        return value

    def _json(self, kind: str, key: bytes, form: type) -> Any:
        if (value := self._known.get(key)) is None:
            value = parse(self._data(kind, key))
            if not isinstance(value, form):
                raise MalformedError(f"a {kind} is not of its form")
            self._known[key] = value
        return value

    def _data(self, kind: str, key: bytes) -> bytes:
        payload = self._find(key[:SHORT])
        if payload is not None:
            found, whole, data = read_definition(payload)
            if found == kind and whole.startswith(key):
                return data
        raise MissingError(f"its {kind} {key.hex()} is not there")


def read_keyed(cls: type[T], data: bytes) -> T:
    """A workload, target or device from its canonical form.

    Raises
    ------
    MalformedError
        If fields are missing or of other types.
    """
    fields = parse(data)
    names = cls.__dataclass_fields__  # type: ignore[attr-defined]
    if not isinstance(fields, dict) or fields.keys() != names.keys():
        raise MalformedError(f"a {cls.__name__.lower()} has other fields")
    value = cls(**fields)
    try:
        value.check()
    except TypeError as error:
        raise MalformedError(str(error)) from None
    return value


# -- trials -------------------------------------------------------------------------------------


def skeleton_of(trial: Trial, numbers: list[Any]) -> str:
    """The skeleton of a trial's document; its numbers go to ``numbers``."""
    return split([trial.knobs, trial.source, trial.provenance, trial.original], numbers)


def toolchain_data(trial: Trial) -> bytes:
    """Canonical form of a trial's toolchain."""
    return canonical(dict(trial.toolchain))


def pack_trial(short: bytes, trial: Trial, numbers: list[Any]) -> bytes:
    """The payload of a trial's frame."""
    out = bytearray(_HEAD.pack(short, trial.timestamp, trial.seconds))
    pack_number(out, trial.error)
    pack_number(out, len(trial.costs))
    out += struct.pack(f"<{len(trial.costs)}d", *trial.costs)
    message = trial.message.encode("utf-8", "replace")
    pack_number(out, len(message))
    out += message
    pack_numbers(out, numbers)
    return bytes(out)


def _measured(payload: memoryview) -> tuple[int, tuple[float, ...], int]:
    """Error and costs of a trial, and where its message begins."""
    error, at = unpack_number(payload, _HEAD.size)
    count, at = unpack_number(payload, at)
    end = at + count * _COST.size
    if end > len(payload):
        raise MalformedError("the costs of a trial are cut")
    return error, struct.unpack_from(f"<{count}d", payload, at), end


def trial_cost(payload: memoryview) -> tuple[bytes, float]:
    """The context's short key and the cost of a trial, without the rest."""
    if len(payload) < _HEAD.size:
        raise MalformedError("a trial is cut")
    error, costs, _ = _measured(payload)
    return bytes(payload[:SHORT]), cost_of(costs, error)


def unpack_trial(payload: memoryview, context: Context) -> Trial:
    """A trial and its context's definitions.

    Raises
    ------
    MalformedError
        If it does not fit them.
    """
    _, timestamp, seconds = _HEAD.unpack_from(payload, 0)
    error, costs, at = _measured(payload)
    length, at = unpack_number(payload, at)
    if at + length > len(payload):
        raise MalformedError("the message of a trial is cut")
    message = bytes(payload[at : at + length]).decode("utf-8", "replace")
    numbers = unpack_numbers(payload, at + length)
    document = join(context.skeleton, numbers)
    if next(numbers, None) is not None or len(document) != 4:
        raise MalformedError("a trial has other numbers than its skeleton")
    knobs, source, provenance, original = document
    types = (type(knobs), type(source), type(provenance))
    if types != (dict, str, dict) or not (original is None or _is_original(original)):
        raise MalformedError("a trial is not of its form")
    return Trial(
        context.workload,
        context.target,
        context.device,
        knobs,
        costs,
        Error(error),
        message,
        timestamp,
        seconds,
        context.toolchain,
        source,
        provenance,
        None if original is None else Original(*original),
    )


def _is_original(document: Any) -> bool:
    return isinstance(document, list) and len(document) == 2 and isinstance(document[0], str)


# -- events -------------------------------------------------------------------------------------


def pack_event(event: Event) -> bytes:
    """The payload of an event's frame, which refers to its device by key."""
    device = None if event.device is None else event.device.key.hex()
    document = [event.kind, event.timestamp, device, dict(event.details)]
    return pack_data(json.dumps(document).encode())


def unpack_event(payload: memoryview, definitions: Definitions) -> Event:
    """An event; its device is left out where its definition is not there.

    Raises
    ------
    MalformedError
        If it is something else.
    """
    document = parse(unpack_data(payload))
    try:
        kind, timestamp, key, details = document
        device = None if key is None else definitions.keyed(Device, bytes.fromhex(key))
        return Event(str(kind), float(timestamp), device, dict(details))
    except MissingError:
        return Event(str(kind), float(timestamp), None, dict(details))
    except (TypeError, ValueError) as error:
        raise MalformedError(f"an event is not of its form: {error}") from None
