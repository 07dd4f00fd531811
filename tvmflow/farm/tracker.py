"""Talks to a TVM RPC tracker: who serves what, which server is free.

TVM's ``TrackerSession`` waits without a limit and does not say which server it got; here
every wait ends, and an offer has the server's address.  Messages are TVM's
(``tvm.rpc.base``).  A tracker keeps a dictionary for every connection and shows those
whose key begins with ``server``: servers of tvmflow and tuning runs publish what they
know about themselves that way.
"""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from ..deploy.link import Host
from ..errors import FarmError
from .about import About, check_version

#: A tracker answers at once; one that does not within this time is not reachable.
_ANSWER_S = 5.0
_SERVER = "server:"
#: Not `server:`, so that TVM's own tools do not count it as one more server of its key.
_ABOUT = "server-about:(about) "
_TUNING = "server-about:(tuning) "


@dataclass(frozen=True, order=True)
class Address:
    """Where a tracker or a server listens."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read ``HOST:PORT``; an IPv6 host may stand in brackets.

        Raises
        ------
        FarmError
            If it is not of that form.
        """
        host, _, port = text.strip().rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
            raise FarmError(
                f"The tracker's address {text!r} was not understood: HOST:PORT was expected.",
                remedy="Give an address such as 192.168.1.10:9190.",
            )
        return cls(host, int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


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
    """What a tracker knows."""

    servers: tuple[Server, ...]
    queues: Mapping[str, Queue]
    #: What servers measure, by their addresses, as far as tuning runs tell.
    runs: Mapping[str, str]

    def serving(self, key: str) -> list[Server]:
        """Return the servers of a key."""
        return [server for server in self.servers if server.key == key]


@dataclass(frozen=True)
class Offer:
    """A server that is this client's until it disconnects; the ticket lets one session in."""

    address: Address
    ticket: str


class Tracker:
    """A connection to a tracker; not to be shared between threads.

    Raises
    ------
    FarmError
        If there is no tracker at the address.
    """

    def __init__(self, address: Address):
        self.address = address
        self._base = protocol()
        try:
            self._socket = socket.create_connection((address.host, address.port), _ANSWER_S)
        except OSError as error:
            raise self._unreachable(error) from error
        try:
            self._socket.sendall(struct.pack("<i", self._base.RPC_TRACKER_MAGIC))
            (magic,) = struct.unpack("<i", self._base.recvall(self._socket, 4))
        except OSError as error:
            self.close()
            raise self._unreachable(error) from error
        if magic != self._base.RPC_TRACKER_MAGIC:
            self.close()
            raise self._unreachable("something else than a tracker answered")

    def close(self) -> None:
        """End the connection; what it published and requested is forgotten."""
        self._socket.close()

    def __enter__(self) -> Tracker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def summary(self) -> Summary:
        """Return the servers and queues."""
        code, value = self._ask([self._base.TrackerCode.SUMMARY])
        if code != self._base.TrackerCode.SUCCESS:
            raise self._unreachable(f"it answered {code}")
        servers: dict[Address, str] = {}
        about: dict[Address, Mapping[str, Any]] = {}
        runs: dict[str, str] = {}
        for item in value["server_info"]:
            address = Address(*item["addr"])
            if item["key"].startswith(_SERVER):
                servers[address] = item["key"].removeprefix(_SERVER)
            elif item["key"].startswith(_ABOUT) and isinstance(item.get("tvmflow"), dict):
                about[address] = item["tvmflow"]
            elif item["key"].startswith(_TUNING):
                runs.update(item["tvmflow"])
        return Summary(
            tuple(Server(a, key, about.get(a, {})) for a, key in sorted(servers.items())),
            {k: Queue(q["free"], q["pending"]) for k, q in value["queue_info"].items()},
            runs,
        )

    def publish(self, key: str, host: str | None, port: int, facts: Mapping[str, Any]) -> None:
        """Show facts about a server of this machine in the tracker's summary.

        They replace those published before and go when the connection ends.  Without a
        `host`, the tracker takes the address that the connection comes from.
        """
        self._publish(_ABOUT + key, host, port, facts)

    def publish_runs(self, key: str, runs: Mapping[str, str]) -> None:
        """Show what servers of a key measure for this client."""
        self._publish(_TUNING + key, None, 0, runs)

    def _publish(self, key: str, host: str | None, port: int, facts: Mapping[str, Any]) -> None:
        info = {"key": key, "addr": [host, port], "tvmflow": facts}
        self._ask([self._base.TrackerCode.UPDATE_INFO, info])

    def request(self, key: str) -> None:
        """Ask for a server; :meth:`offer` gives it, and nothing else may be asked before."""
        self._exchange(lambda: self._send([self._base.TrackerCode.REQUEST, key, "", 1]))

    def offer(self, timeout_s: float) -> Offer | None:
        """Return the requested server, or ``None`` when none became free in time."""
        ready, _, _ = select.select([self._socket], [], [], timeout_s)
        if not ready:
            return None
        code, value = self._exchange(self._receive)
        if code != self._base.TrackerCode.SUCCESS:
            raise self._unreachable(f"it answered {code}")
        host, port, ticket = value
        return Offer(Address(host, port), ticket)

    def _ask(self, message: list[Any]) -> Any:
        def ask() -> Any:
            self._send(message)
            return self._receive()

        return self._exchange(ask)

    def _send(self, message: list[Any]) -> None:
        self._base.sendjson(self._socket, message)

    def _receive(self) -> Any:
        return self._base.recvjson(self._socket)

    def _exchange(self, action: Any) -> Any:
        try:
            return action()
        except (OSError, ValueError, struct.error) as error:
            raise self._unreachable(error) from error

    def _unreachable(self, reason: object) -> FarmError:
        # Without its number.
        reason = getattr(reason, "strerror", None) or reason
        return FarmError(
            f"The tracker at {self.address} cannot be reached: {reason}.",
            remedy="Start one (tvmflow farm tracker), or correct the address and the firewall.",
        )


def protocol() -> ModuleType:
    """Return TVM's protocol of trackers, or say what is missing."""
    # The protocol needs none of them, but TVM's trackers and servers do.
    for package in ("cloudpickle", "psutil", "tornado"):
        if find_spec(package) is None:
            raise FarmError(
                f"The device farm needs the Python package {package}, which is not installed.",
                remedy="python -m pip install 'tvmflow[tuning]'",
            )
    return import_module("tvm.rpc.base")


def check_key(key: str) -> str:
    """Return a key that TVM's protocol can carry.

    Raises
    ------
    FarmError
        If it is empty, or has a space or a colon, which separate the protocol's words.
    """
    if not key or any(c.isspace() or c == ":" for c in key):
        raise FarmError(
            f"The key {key!r} cannot be used: a name without spaces and colons was expected.",
            remedy="Name the kind of device, for example pixel8.",
        )
    return key


def check_served(tracker: Tracker, key: str) -> list[Server]:
    """Return the servers of a key.

    Raises
    ------
    FarmError
        If there is none, or only such with other versions.
    """
    summary = tracker.summary()
    servers = summary.serving(key)
    if not servers:
        keys = ", ".join(sorted({server.key for server in summary.servers}))
        raise FarmError(
            f"Nobody serves the key {key!r} at the tracker {tracker.address}: "
            + (f"it has servers for {keys}." if keys else "it has no server."),
            remedy=f"Start one: tvmflow farm serve --tracker {tracker.address} --key {key}",
        )
    errors = []
    for server in servers:
        about = About.read(server.about)
        try:
            if about is not None:
                check_version(server.address, about)
            # A stock server has no version to differ.
            return servers
        except FarmError as error:
            errors.append(error)
    raise errors[0]


def check_host(servers: Sequence[Server], host: Host) -> None:
    """Refuse to compile for a machine that none of the servers is.

    Raises
    ------
    FarmError
        If all of them have another processor; stock servers do not tell theirs.
    """
    told = [About.read(server.about) for server in servers]
    triples = {about.host for about in told if about is not None}
    architectures = {Host.parse(triple).architecture for triple in triples}
    if None not in told and host.architecture not in architectures:
        triple = min(triples)
        raise FarmError(
            f"Candidates would be compiled for the host {host.triple}, but the servers of the key "
            f"{servers[0].key!r} run on {', '.join(sorted(triples))}.",
            remedy=f"Name their host: --host {triple}",
        )
