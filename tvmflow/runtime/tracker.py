"""Client of a TVM RPC tracker: lists servers, and requests free ones.

TVM's ``TrackerSession`` waits without a limit and does not say which server it got; here every
wait has a limit, and an offer has the server's address.  Messages are TVM's (``tvm.rpc.base``).
A tracker keeps a dictionary for every connection and lists those whose key begins with
``server``; tvmflow servers and tuning runs publish facts about themselves this way.  Entries come
from any client: malformed ones are skipped without affecting others.
"""

from __future__ import annotations

import json
import select
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import TypeVar

from .._versions import install_command
from ..errors import FarmError
from .json_types import JsonMapping
from .secret import GREETING, Address, UnprovenError

T = TypeVar("T")

#: Prefix of the keys of servers' entries; those of phones have facts in them.
SERVER = "server:"
#: Prefix of facts about TVM's servers, whose entries have none; not `server:`, or TVM's tools would
#: count another server of the key.
ABOUT = "server-about:(about) "
#: Prefix of the tasks that a tuning run measures.
TUNING = "server-about:(tuning) "
#: The fact ``kind`` of servers whose sessions speak the agent's protocol.
AGENT = "agent"

#: Time limit of a tracker's answer.
_ANSWER_S = 5.0
_START = "Start one (tvmflow farm tracker), or correct the address and the firewall."
#: Most characters of a malformed entry that are shown.
_SHOWN = 200
#: Longest key; names of devices are shorter.
KEY_LIMIT = 64
#: Facts that tvmflow servers publish and this file uses, with their types.
_PUBLISHED: Mapping[str, tuple[type, ...]] = {
    "tvmflow": (str,),
    "devices": (list,),
    "busy_s": (int, float, type(None)),
    "crashes": (int, type(None)),
    "temperature_c": (int, float, type(None)),
    "throttled": (bool, type(None)),
}
#: Further facts, which are texts if they are published.
_TEXTS = ("kind", "model", "system", "state")


class TrackerAwayError(FarmError):
    """Raised if nobody answers at a tracker's address; it may start later."""


class MalformedError(ValueError):
    """Raised for malformed data from a tracker."""


# -- a tracker's summary ------------------------------------------------------------------------


@dataclass(frozen=True)
class Server:
    """A server that a tracker lists; ``about`` is empty for stock servers."""

    address: Address
    key: str
    about: JsonMapping

    @property
    def is_agent(self) -> bool:
        """Return whether its sessions speak the agent's protocol instead of TVM's."""
        return self.about.get("kind") == AGENT


@dataclass(frozen=True)
class Queue:
    """Numbers of free servers and of waiting requests of a key."""

    free: int
    waiting: int


@dataclass(frozen=True)
class Summary:
    """Summary of a tracker."""

    #: Servers in the order of their addresses.
    servers: tuple[Server, ...]
    #: Queues by key.
    queues: Mapping[str, Queue]
    #: Tasks that tuning runs report, by the server's address.
    runs: Mapping[str, str]
    #: Malformed entries, truncated.
    malformed: tuple[str, ...] = ()

    def serving(self, key: str) -> list[Server]:
        """Return the servers of a key."""
        return [server for server in self.servers if server.key == key]


def read_summary(answer: object) -> Summary:
    """Read a tracker's summary.  Raises `MalformedError`."""
    value = of_type(dict, answer)
    servers: dict[Address, str] = {}
    about: dict[Address, JsonMapping] = {}
    runs: dict[str, str] = {}
    queues: dict[str, Queue] = {}
    malformed = []
    for item in of_type(list, value.get("server_info")):
        try:
            key = _text(of_type(dict, item).get("key"))
            if key.startswith(SERVER):
                served = key.removeprefix(SERVER)
                if len(served) > KEY_LIMIT:
                    raise MalformedError(f"the key has {len(served)} characters")
                address = read_address(item.get("addr"))
                servers[address] = served
                if "tvmflow" in item:
                    about[address] = _published(item["tvmflow"])
            elif key.startswith(ABOUT):
                about[read_address(item.get("addr"))] = _published(item.get("tvmflow"))
            elif key.startswith(TUNING):
                told = of_type(dict, item.get("tvmflow"))
                runs.update({_text(address): _text(task) for address, task in told.items()})
            else:
                malformed.append(_short(item))
        except MalformedError:
            malformed.append(_short(item))
    for key, queue in of_type(dict, value.get("queue_info")).items():
        free, waiting = (
            of_type(int, of_type(dict, queue).get(name)) for name in ("free", "pending")
        )
        queues[key] = Queue(free, waiting)
    listed = (Server(a, key, about.get(a, {})) for a, key in sorted(servers.items()))
    return Summary(tuple(listed), queues, runs, tuple(malformed))


def read_address(value: object) -> Address:
    """Read a host and a port.  Raises `MalformedError`."""
    parts = of_type(list, value)
    if len(parts) != 2 or not isinstance(parts[1], int) or not 0 < parts[1] < 65536:
        raise MalformedError(f"{_short(value)} is no host with a port")
    return Address(_text(parts[0]), parts[1])


def _published(value: object) -> JsonMapping:
    facts = of_type(dict, value)
    for name, types in _PUBLISHED.items():
        # `bool` is an `int` for Python.
        fact = facts.get(name)
        if not isinstance(fact, types) or (isinstance(fact, bool) and bool not in types):
            raise MalformedError(f"{name} is {_short(fact)}")
    for name in _TEXTS:
        _text(facts.get(name, ""))
    for device in facts["devices"]:
        _text(of_type(dict, device).get("name"))
        _text(device.get("driver", ""))
    return facts


def _text(value: object) -> str:
    text = of_type(str, value)
    # Other characters could control a terminal.
    if not text.isprintable():
        raise MalformedError(f"{_short(value)} has characters that are not printable")
    return text


def of_type(expected: type[T], value: object) -> T:
    """Return a value of the expected type.  Raises `MalformedError` for others."""
    if not isinstance(value, expected):
        raise MalformedError(f"{_short(value)} is no {expected.__name__}")
    return value


def _short(value: object) -> str:
    # As ASCII, since it may contain any characters.
    text = json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


# -- the connection -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Offer:
    """A server reserved for this client until it disconnects; the ticket admits one session."""

    address: Address
    ticket: str


class Tracker(AbstractContextManager["Tracker"]):
    """A connection to a tracker; not to be shared between threads.

    Raises `TrackerAwayError` if nobody answers at the address; `FarmError` if that is no tracker,
    or one that asks for another secret.
    """

    def __init__(self, address: Address):
        self.address = address
        self._base = protocol()
        with self._talking(), ExitStack() as stack:
            self._socket = stack.enter_context(address.connect(_ANSWER_S))
            expected = struct.pack("<i", self._base.RPC_TRACKER_MAGIC)
            self._socket.sendall(expected)
            answer = self._base.recvall(self._socket, len(expected))
            if GREETING.startswith(answer):
                raise UnprovenError("it asks for a secret")
            if answer != expected:
                raise FarmError(
                    f"The tracker at {address} cannot be reached: something else than a tracker "
                    "answered.",
                    remedy=_START,
                )
            stack.pop_all()

    def close(self) -> None:
        """End the connection; the tracker forgets what it published and requested."""
        self._socket.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def summary(self) -> Summary:
        """Return the servers and queues."""
        with self._talking():
            self._base.sendjson(self._socket, [self._base.TrackerCode.SUMMARY])
            return read_summary(self._granted())

    def publish(self, key: str, facts: JsonMapping, host: str | None = None, port: int = 0) -> None:
        """Publish facts in the tracker's summary.

        The key begins with `SERVER`, `ABOUT` or `TUNING`.  They replace earlier ones and vanish
        when the connection ends.  Without a `host`, the tracker uses the address that the
        connection comes from.
        """
        info = {"key": key, "addr": [host, port], "tvmflow": facts}
        with self._talking():
            self._base.sendjson(self._socket, [self._base.TrackerCode.UPDATE_INFO, info])
            self._base.recvjson(self._socket)

    def put(self, key: str, port: int, ticket: str, host: str | None = None) -> None:
        """Offer a server: the tracker gives the ticket to the next client of the key.

        The offer ends with the connection.
        """
        code = self._base.TrackerCode.PUT
        with self._talking():
            self._base.sendjson(self._socket, [code, key, [port, ticket], host])
            self._base.recvjson(self._socket)

    def pending(self) -> list[str]:
        """Return the tickets of this connection that no client has got yet."""
        with self._talking():
            self._base.sendjson(self._socket, [self._base.TrackerCode.GET_PENDING_MATCHKEYS])
            return of_type(list, self._base.recvjson(self._socket))

    def servers_of(self, key: str) -> list[Server]:
        """Return the servers of a key.  Raises `FarmError` if there is none."""
        summary = self.summary()
        if servers := summary.serving(key):
            return servers
        keys = ", ".join(sorted({server.key for server in summary.servers}))
        raise FarmError(
            f"Nobody serves the key {key!r} at the tracker {self.address}: "
            + (f"it has servers for {keys}." if keys else "it has no server."),
            remedy=f"Start one: tvmflow farm serve --tracker {self.address} --key {key}",
        )

    def request(self, key: str) -> None:
        """Request a server; call :meth:`offer` to get it before any other request."""
        with self._talking():
            self._base.sendjson(self._socket, [self._base.TrackerCode.REQUEST, key, "", 1])

    def offer(self, timeout_s: float) -> Offer | None:
        """Return the requested server, or ``None`` when none became free in time."""
        ready, _, _ = select.select([self._socket], [], [], timeout_s)
        if not ready:
            return None
        with self._talking():
            value = self._granted()
            if not isinstance(value, list) or len(value) != 3 or not isinstance(value[2], str):
                raise MalformedError(f"{value!r} is no offer")
            # Servers share the tracker's secret.
            place = replace(read_address(value[:2]), secret=self.address.secret)
            return Offer(place, value[2])

    def _granted(self) -> object:
        """Receive the answer to a request."""
        answer, success = self._base.recvjson(self._socket), self._base.TrackerCode.SUCCESS
        if not isinstance(answer, list) or len(answer) != 2 or answer[0] != success:
            raise MalformedError("it answered something else than what was asked for")
        return answer[1]

    @contextmanager
    def _talking(self) -> Iterator[None]:
        try:
            yield
        except UnprovenError as error:
            raise FarmError(
                f"The tracker at {self.address} was not used: {error}.",
                remedy="Give the file that the tracker was started with (`secret_file`), if any.",
            ) from error
        except (OSError, ValueError, struct.error) as error:
            # Without its number.
            reason = getattr(error, "strerror", None) or error
            raise TrackerAwayError(
                f"The tracker at {self.address} cannot be reached: {reason}.", remedy=_START
            ) from error


def protocol() -> ModuleType:
    """Return TVM's tracker protocol; raises `FarmError` if a package is missing."""
    # Only TVM's trackers and servers need these packages, not the protocol.
    for package in ("cloudpickle", "psutil", "tornado"):
        if find_spec(package) is None:
            raise FarmError(
                f"The device farm needs the Python package {package}, which is not installed.",
                remedy=install_command("tuning"),
            )
    return import_module("tvm.rpc.base")


def are_agents(servers: Sequence[Server]) -> bool:
    """Return whether the servers of a key speak the agent's protocol.

    Raises `FarmError` if only some of them do.
    """
    agents = [str(server.address) for server in servers if server.is_agent]
    if agents and len(agents) < len(servers):
        raise FarmError(
            f"The key {servers[0].key!r} has servers of two kinds, where one was expected: "
            f"{', '.join(agents)} with an agent, the others with TVM.",
            remedy="Start one kind of them with another key (tvmflow farm serve).",
        )
    return bool(agents)


def check_key(key: str) -> str:
    """Check that TVM's protocol can carry a key, and return it.

    Raises `FarmError` if it is empty, longer than `KEY_LIMIT` characters, cannot be printed, or has
    a space or a colon, which separate the protocol's words.
    """
    allowed = key.isprintable() and not any(c.isspace() or c == ":" for c in key)
    if not key or len(key) > KEY_LIMIT or not allowed:
        raise FarmError(
            f"The key {_short(key)} cannot be used: a name of at most {KEY_LIMIT} printable "
            "characters, without spaces and colons, was expected.",
            remedy="Name the kind of device, for example pixel8.",
        )
    return key
