"""What a tracker knows, read with care: its entries are whatever those who connected sent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .address import Address

#: What the keys of entries begin with: servers.
SERVER = "server:"
#: Not `server:`, so that TVM's own tools do not count it as one more server of its key.
ABOUT = "server-about:(about) "
TUNING = "server-about:(tuning) "

#: So much of an entry that is not understood is shown.
_SHOWN = 200

#: What :mod:`.server` publishes, as far as it is used here, and of which types it is.
_FACTS: Mapping[str, tuple[type, ...]] = {
    "tvmflow": (str,),
    "devices": (list,),
    "busy_s": (int, float, type(None)),
    "crashes": (int,),
    "temperature_c": (int, float, type(None)),
    "throttled": (bool, type(None)),
}


@dataclass(frozen=True)
class Server:
    """A server that a tracker lists; ``about`` is empty unless it is one of tvmflow's."""

    address: Address
    key: str
    about: Mapping[str, Any]


@dataclass(frozen=True)
class Queue:
    """How many servers of a key wait for work, and how many requests wait for a server."""

    free: int
    waiting: int


@dataclass(frozen=True)
class Summary:
    """What a tracker knows.

    Parameters
    ----------
    servers
        In the order of their addresses.
    queues
        By key.
    runs
        What servers measure, by their addresses, as far as tuning runs tell.
    malformed
        Entries of another form, as they came but cut short.
    """

    servers: tuple[Server, ...]
    queues: Mapping[str, Queue]
    runs: Mapping[str, str]
    malformed: tuple[str, ...] = ()

    def serving(self, key: str) -> list[Server]:
        """Return the servers of a key."""
        return [server for server in self.servers if server.key == key]


class MalformedError(ValueError):
    """What came through a tracker is not of the form."""


def read_summary(value: Any) -> Summary:
    """Read a tracker's answer; what is malformed spoils nothing else.

    Raises
    ------
    MalformedError
        If it is not the answer of a tracker.
    """
    value = _mapping(value)
    servers: dict[Address, str] = {}
    about: dict[Address, Mapping[str, Any]] = {}
    runs: dict[str, str] = {}
    queues: dict[str, Queue] = {}
    malformed = []
    for item in _list(value.get("server_info")):
        try:
            key = _text(_mapping(item).get("key"))
            if key.startswith(SERVER):
                servers[read_address(item.get("addr"))] = key.removeprefix(SERVER)
            elif key.startswith(ABOUT):
                about[read_address(item.get("addr"))] = _facts(item.get("tvmflow"))
            elif key.startswith(TUNING):
                told = _mapping(item.get("tvmflow"))
                runs.update({_text(address): _text(task) for address, task in told.items()})
            else:
                malformed.append(_short(item))
        except MalformedError:
            malformed.append(_short(item))
    for key, queue in _mapping(value.get("queue_info")).items():
        queue = _mapping(queue)
        queues[key] = Queue(_count(queue.get("free")), _count(queue.get("pending")))
    listed = (Server(a, key, about.get(a, {})) for a, key in sorted(servers.items()))
    return Summary(tuple(listed), queues, runs, tuple(malformed))


def read_address(value: Any) -> Address:
    """Read a host and a port.

    Raises
    ------
    MalformedError
        If it is something else.
    """
    parts = _list(value)
    if len(parts) != 2 or not isinstance(parts[1], int) or not 0 < parts[1] < 65536:
        raise MalformedError(f"{_short(value)} is no host with a port")
    return Address(_text(parts[0]), parts[1])


def _facts(value: Any) -> Mapping[str, Any]:
    facts = _mapping(value)
    for name, types in _FACTS.items():
        # `bool` is an `int` for Python.
        fact = facts.get(name)
        if not isinstance(fact, types) or (isinstance(fact, bool) and bool not in types):
            raise MalformedError(f"{name} is {_short(fact)}")
    for device in facts["devices"]:
        _text(_mapping(device).get("name"))
    return facts


def _mapping(value: Any) -> dict[str, Any]:
    found: dict[str, Any] = _of(dict, value)
    return found


def _list(value: Any) -> list[Any]:
    found: list[Any] = _of(list, value)
    return found


def _text(value: Any) -> str:
    text: str = _of(str, value)
    # A terminal obeys others.
    if not text.isprintable():
        raise MalformedError(f"{_short(value)} has characters that are not printable")
    return text


def _count(value: Any) -> int:
    count: int = _of(int, value)
    return count


def _of(expected: type, value: Any) -> Any:
    if not isinstance(value, expected):
        raise MalformedError(f"{_short(value)} is no {expected.__name__}")
    return value


def _short(value: Any) -> str:
    # ASCII: it may have anything in it.
    text = json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
