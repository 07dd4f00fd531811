"""Talks to a TVM RPC tracker: who serves what, which server is free.

TVM's ``TrackerSession`` waits without a limit and does not say which server it got; here
every wait ends, and an offer has the server's address.  Messages are TVM's
(``tvm.rpc.base``).  A tracker keeps a dictionary for every connection and shows those
whose key begins with ``server``: servers of tvmflow and tuning runs publish what they
know about themselves that way.
"""

from __future__ import annotations

import select
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any, TypeVar

from ..devices.host import Host
from ..errors import FarmError
from .about import About, check_version
from .address import Address
from .secret import GREETING, UnprovenError
from .summary import ABOUT, TUNING, MalformedError, Server, Summary, read_address, read_summary

T = TypeVar("T")

#: A tracker answers at once; one that does not within this time is not reachable.
_ANSWER_S = 5.0
_START = "Start one (tvmflow farm tracker), or correct the address and the firewall."


class TrackerAwayError(FarmError):
    """Nobody answers at a tracker's address, which may change."""


@dataclass(frozen=True)
class Offer:
    """A server that is this client's until it disconnects; the ticket lets one session in."""

    address: Address
    ticket: str


class Tracker:
    """A connection to a tracker; not to be shared between threads.

    Raises
    ------
    TrackerAwayError
        If nobody answers at the address.
    FarmError
        If that is no tracker, or one that asks for another secret.
    """

    def __init__(self, address: Address):
        self.address = address
        self._base = protocol()
        try:
            self._socket = address.connect(_ANSWER_S)
        except UnprovenError as error:
            raise self._unproven(str(error)) from error
        except OSError as error:
            raise self._unreachable(error) from error
        expected = struct.pack("<i", self._base.RPC_TRACKER_MAGIC)
        try:
            self._socket.sendall(expected)
            answer = self._base.recvall(self._socket, len(expected))
        except OSError as error:
            self.close()
            raise self._unreachable(error) from error
        if answer != expected:
            self.close()
            if GREETING.startswith(answer):
                raise self._unproven("it asks for a secret")
            raise FarmError(
                f"The tracker at {address} cannot be reached: something else than a tracker "
                "answered.",
                remedy=_START,
            )

    def close(self) -> None:
        """End the connection; what it published and requested is forgotten."""
        self._socket.close()

    def __enter__(self) -> Tracker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def summary(self) -> Summary:
        """Return the servers and queues."""
        return self._understood(
            lambda: read_summary(self._granted(self._ask([self._base.TrackerCode.SUMMARY])))
        )

    def publish(self, key: str, host: str | None, port: int, facts: Mapping[str, Any]) -> None:
        """Show facts about a server of this machine in the tracker's summary.

        They replace those published before and go when the connection ends.  Without a
        `host`, the tracker takes the address that the connection comes from.
        """
        self._publish(ABOUT + key, host, port, facts)

    def publish_runs(self, key: str, runs: Mapping[str, str]) -> None:
        """Show what servers of a key measure for this client."""
        self._publish(TUNING + key, None, 0, runs)

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
        return self._understood(self._receive_offer)

    def _receive_offer(self) -> Offer:
        value = self._granted(self._exchange(self._receive))
        if not isinstance(value, list) or len(value) != 3 or not isinstance(value[2], str):
            raise MalformedError(f"{value!r} is no offer")
        # Its servers have the same secret.
        place = replace(read_address(value[:2]), secret=self.address.secret)
        return Offer(place, value[2])

    def _granted(self, answer: Any) -> Any:
        success = self._base.TrackerCode.SUCCESS
        if not isinstance(answer, list) or len(answer) != 2 or answer[0] != success:
            raise MalformedError("it answered something else than what was asked for")
        return answer[1]

    def _understood(self, ask: Callable[[], T]) -> T:
        try:
            return ask()
        except MalformedError as error:
            raise self._unreachable(error) from error

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
        return TrackerAwayError(
            f"The tracker at {self.address} cannot be reached: {reason}.", remedy=_START
        )

    def _unproven(self, reason: str) -> FarmError:
        return FarmError(
            f"The tracker at {self.address} was not used: {reason}.",
            remedy="Give the file that the tracker was started with (`secret_file`), if any.",
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
            remedy=f"Name their host: `host={triple}`",
        )
