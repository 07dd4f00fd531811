"""Servers of phones and boards, which need no TVM: sessions speak the agent's protocol.

Each device has a port and a connection to the tracker, which lists it with its facts, and has a
ticket to it while it is free (:mod:`tvmflow.agent.lent` is the client).  For a session an agent is
started there, and bytes are forwarded.  Between sessions a short agent reads the sensors; above the
temperature limit the ticket is withdrawn.
"""

from __future__ import annotations

import secrets
import select
import socket
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from .._versions import __version__
from ..agent.adb import Adb
from ..agent.device import RemoteDevice
from ..agent.lent import OPTION, receive_words, send_words
from ..agent.places import parse_place
from ..agent.transports import Stream, Transport
from ..errors import AgentError, FarmError
from ..runtime.json_types import JsonMapping
from ..runtime.secret import Address
from ..runtime.tracker import AGENT, SERVER, Tracker, protocol
from .network import SecretListener, listen
from .server import PORTS, Event, ServeOptions, wait_for
from .server_info import ServedDevice

#: Place that stands for every attached phone.
ALL_PHONES = "adb:all"
#: Interval of looks at the sensors.
LOOK_S = 15.0
#: A device that was too hot is offered again this far below its limit.
COOLER_C = 2.0
#: Interval of looks at the attached phones, and of publishing.
_TICK_S = 1.0
#: Time for a client's first words, and for using its ticket.
_WORDS_S, _UNUSED_S = 5.0, 6.0
#: Silence after which a client is gone; it sends something every ten seconds.
_SILENCE_S = 60.0
_PIECE_BYTES = 1 << 18
#: Begin of the state of a device that is too hot.
_PAUSED = "paused: "
#: Most events that wait to be logged; the oldest are dropped.
_LOGGED = 1000


class AgentServers:
    """The servers of a place: one device, or all attached phones, also those that come later.

    Raises `AgentError` if the place is not known or the phone is not attached; `FarmError` as
    `FarmServer` does.
    """

    def __init__(self, options: ServeOptions, on: str, max_celsius: float | None = None):
        options.check()
        protocol()
        self._options, self._max_celsius = options, max_celsius
        self._events: deque[Event] = deque(maxlen=_LOGGED)
        self.servers: dict[str, AgentServer] = {}
        self._watches_all = on == ALL_PHONES
        self._adb_failure = ""
        wait_for(options.tracker, options.wait_s).close()
        if self._watches_all:
            attached = [f"adb:{serial}" for serial in Adb.all()]
        elif on.startswith("farm:"):
            raise FarmError(
                f"Serving {on} was refused: a farm lends it already.",
                remedy="Name a device of this machine or its network, such as `on=adb`.",
            )
        else:
            attached = [parse_place(on, _secret_file(options)).name]
        try:
            for place in attached:
                self._add(place)
        except FarmError:
            self.close()
            raise

    def check(self) -> list[Event]:
        """Look for phones that were attached or unplugged, and return new events."""
        if self._watches_all or any(place.startswith("adb:") for place in self.servers):
            self._look_at_phones()
        for server in self.servers.values():
            self._events.extend(Event(refusal) for refusal in server.take_refused())
        return [self._events.popleft() for _ in range(len(self._events))]

    def close(self) -> None:
        """End all sessions and servers."""
        for server in self.servers.values():
            server.end()
        for server in self.servers.values():
            server.join()

    def _look_at_phones(self) -> None:
        try:
            attached = {f"adb:{serial}" for serial in Adb.all()}
        except AgentError as error:
            if error.message != self._adb_failure:
                self._events.append(Event(error.message))
            self._adb_failure = error.message
            return
        self._adb_failure = ""
        for place, server in self.servers.items():
            if place.startswith("adb:"):
                server.is_attached = place in attached
        if self._watches_all:
            for place in sorted(attached - self.servers.keys()):
                self._add(place)

    def _add(self, place: str) -> None:
        first = self._options.port
        ports = PORTS if first is None else range(first, first + 1)
        if first is not None and self._watches_all:
            ports = range(first, min(first + len(PORTS), 1 << 16))
        how = self._options, ports, self._max_celsius
        self.servers[place] = AgentServer(place, *how, self._events)


class AgentServer:
    """Server of one device, in a thread, for one client at a time."""

    def __init__(
        self,
        place: str,
        options: ServeOptions,
        ports: range,
        max_celsius: float | None,
        events: deque[Event],
    ):
        self.place, self._options = place, options
        self._max_celsius = max_celsius
        #: Whether adb lists the phone; others are always there.
        self.is_attached = True
        try:
            self._listening, self.port = listen(options.host, ports, options.tracker.secret)
        except OSError as error:
            raise FarmError(
                f"Listening at {options.host}, ports {ports[0]} to {ports[-1]} failed: "
                f"{error.strerror or error}.",
                remedy="Give an address of this machine with `bind` and a free port with `port`.",
            ) from error
        self._events = events
        self._tracker: Tracker | None = None
        self._tracker_failure = ""
        #: Ticket that a client must give; empty while the device is not offered.
        self._ticket = ""
        #: When the tracker gave the ticket away, as far as it is not used.
        self._lent_at: float | None = None
        #: Facts that change with the device only; none before it was seen.
        self._facts: JsonMapping = {}
        self._celsius: float | None = None
        self._is_throttled: bool | None = None
        #: Why the device is not offered; empty if it is.
        self._state = ""
        self._busy_since: float | None = None
        self._connection: socket.socket | None = None
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"tvmflow-{place}", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """End the session and the server."""
        self._ending.set()
        if (connection := self._connection) is not None:
            _shut_down(connection)

    def join(self) -> None:
        """Wait for the end."""
        self._thread.join()
        self._listening.close()

    def take_refused(self) -> list[str]:
        """Return a sentence for each address whose secret was refused since the last call."""
        listening = self._listening
        return listening.take_refused() if isinstance(listening, SecretListener) else []

    # -- in the thread -------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._ending.is_set():
            if not self.is_attached:
                if self._facts:
                    self._log("was unplugged.")
                self._facts = {}
                self._withdraw()
                self._ending.wait(_TICK_S)
                continue
            try:
                self._look()
                self._publish()
                client = self._next_client(time.monotonic() + LOOK_S)
                if client is not None:
                    self._serve(*client)
            except Exception as error:  # noqa: BLE001 (nothing of one session may end the server)
                self._log(f"failed: {type(error).__name__}: {error}. Trying again.")
                self._ending.wait(LOOK_S)
        self._withdraw()

    def _look(self) -> None:
        """Read the sensors, and decide whether the device is offered."""
        before = self._state
        try:
            with RemoteDevice(self._transport()) as device:
                sensors = device.sensors()
                if not self._facts:
                    self._facts = _describe(device)
                    self._log(f"is {self._facts['model']}, at port {self.port}.")
                    if self._max_celsius is not None and not sensors.get("temperatures"):
                        self._log("reports no temperature, so that its limit has no effect.")
        except AgentError as error:
            # The tracker's clients print it.
            self._state = "".join(c if c.isprintable() else " " for c in error.message)
            if before != self._state and self.is_attached:
                self._log(f"is not offered: {self._state}")
            return
        self._celsius = max(sensors.get("temperatures", {}).values(), default=None)
        throttled = sensors.get("throttled")
        self._is_throttled = None if throttled is None else bool(throttled)
        self._state = self._too_hot(was_hot=before.startswith(_PAUSED))
        if self._state and not before.startswith(_PAUSED):
            self._log(f"is {self._state}.")
        elif before and not self._state:
            celsius = "" if self._celsius is None else f": {self._celsius:.0f} °C"
            self._log(f"is offered again{celsius}.")

    def _too_hot(self, was_hot: bool) -> str:
        """Return the state of a device that is too hot, or was so and has not cooled down."""
        limit = self._max_celsius
        if limit is None or self._celsius is None:
            return ""
        if self._celsius <= limit - (COOLER_C if was_hot else 0):
            return ""
        return f"{_PAUSED}{self._celsius:.0f} °C, limit {limit:g}"

    def _publish(self) -> None:
        """Publish the facts, and offer the device if it is free, or withdraw it."""
        is_free = self._busy_since is None and not self._state
        if self._ticket and not is_free:
            self._withdraw()
        busy_s = None if self._busy_since is None else time.monotonic() - self._busy_since
        facts = {
            "devices": [],
            **self._facts,
            "kind": AGENT,
            "tvmflow": __version__,
            "state": self._state,
            "busy_s": busy_s and round(busy_s, 1),
            "crashes": None,
            "temperature_c": self._celsius,
            "throttled": self._is_throttled,
        }
        options = self._options
        try:
            if self._tracker is None:
                self._tracker = Tracker(options.tracker)
                if self._tracker_failure:
                    self._log(f"is at the tracker at {options.tracker} again.", is_routine=True)
                self._tracker_failure = ""
            key, host = options.key, options.advertised
            self._tracker.publish(SERVER + key, facts, host, self.port)
            if is_free and self._needs_ticket(self._tracker):
                ticket = f"{key}:{secrets.token_hex(8)}"
                self._tracker.put(key, self.port, ticket, host)
                self._ticket, self._lent_at = ticket, None
        except FarmError as error:
            self._withdraw()
            if not self._tracker_failure:
                self._log(f"is at no tracker: {error.message} Trying again.")
            self._tracker_failure = error.message

    def _needs_ticket(self, tracker: Tracker) -> bool:
        """Return whether there is no ticket, or a client got it and did not use it."""
        if not self._ticket:
            return True
        if self._ticket in tracker.pending():
            self._lent_at = None
            return False
        now = time.monotonic()
        self._lent_at = self._lent_at or now
        return now - self._lent_at > _UNUSED_S

    def _withdraw(self) -> None:
        """Leave the tracker, which forgets the ticket."""
        if self._tracker is not None:
            self._tracker.close()
        self._tracker, self._ticket = None, ""

    def _next_client(self, ends: float) -> tuple[socket.socket, Address] | None:
        """Wait for a client with the ticket; return ``None`` if there is none in time."""
        while self.is_attached and not self._ending.is_set() and time.monotonic() < ends:
            ready, _, _ = select.select([self._listening], [], [], _TICK_S)
            if not ready:
                self._publish()
                continue
            connection, (host, port, *_) = self._listening.accept()
            if self._admit(connection):
                return connection, Address(host, port)
            connection.close()
            self._log(f"refused {Address(host, port)}, which had no valid ticket.")
        return None

    def _admit(self, connection: socket.socket) -> bool:
        """Return whether a client's first words have the ticket, which admits only one."""
        base = protocol()
        with suppress(OSError):
            code, words = receive_words(connection, _WORDS_S)
            expected = f"client:{self._ticket} {OPTION}"
            if self._ticket and (code, words) == (base.RPC_MAGIC, expected):
                self._ticket = ""
                return True
            send_words(connection, base.RPC_CODE_MISMATCH, "")
        return False

    def _serve(self, connection: socket.socket, client: Address) -> None:
        """Forward a client's session to an agent, until one of them ends."""
        base, began = protocol(), time.monotonic()
        self._busy_since, self._connection = began, connection
        session = f"session {client}"
        try:
            connection.settimeout(_SILENCE_S)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            stream = self._transport().start()
            self._log(f"{session} connected.", is_routine=True)
            try:
                answer = f"server:{self._options.key} {OPTION}"
                send_words(connection, base.RPC_CODE_SUCCESS, answer)
                self._forward(connection, stream)
            finally:
                stream.close()
            trouble = stream.trouble()
            lasted = f"{time.monotonic() - began:.1f} s"
            told = f" The agent said: {trouble}" if trouble else ""
            self._log(f"{session} ended after {lasted}.{told}", is_routine=not trouble)
        except AgentError as error:
            self._log(f"{session} failed: {error.message}")
            with suppress(OSError):
                words = f"{error.message}\n{error.remedy or ''}"
                send_words(connection, base.RPC_CODE_MISMATCH, words)
        except OSError as error:
            self._log(f"{session} failed: {error.strerror or error}.")
        finally:
            connection.close()
            self._busy_since = self._connection = None

    def _forward(self, connection: socket.socket, stream: Stream) -> None:
        directions = [
            threading.Thread(target=run, args=(connection, stream), daemon=True)
            for run in (_to_agent, _to_client)
        ]
        for direction in directions:
            direction.start()
        while any(direction.is_alive() for direction in directions):
            for direction in directions:
                direction.join(_TICK_S)
            if self._ending.is_set() or not self.is_attached:
                _shut_down(connection)
            self._publish()

    def _transport(self) -> Transport:
        return parse_place(self.place, _secret_file(self._options))

    def _log(self, text: str, is_routine: bool = False) -> None:
        self._events.append(Event(f"{self.place} {text}", is_routine))


def _secret_file(options: ServeOptions) -> Path | None:
    return None if options.tracker.secret is None else options.tracker.secret.file


def _to_agent(connection: socket.socket, stream: Stream) -> None:
    with suppress(OSError, ValueError):
        while piece := connection.recv(_PIECE_BYTES):
            stream.write(piece)
    # The agent ends, and with it the other direction.
    stream.close()


def _to_client(connection: socket.socket, stream: Stream) -> None:
    with suppress(OSError, ValueError):
        while piece := stream.receive(_PIECE_BYTES):
            connection.sendall(piece)
    _shut_down(connection)


def _shut_down(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _describe(device: RemoteDevice) -> JsonMapping:
    """Return the facts about a device that clients and ``farm status`` use."""
    facts = device.facts
    release = str(facts.get("release", ""))
    found = [ServedDevice(d.kind, d.index, d.name, d.driver) for d in device.opencl_devices()]
    return {
        "model": device.name,
        "system": f"Android {release}" if facts.get("system") == "android" else release,
        "devices": [asdict(each) for each in found],
    }
