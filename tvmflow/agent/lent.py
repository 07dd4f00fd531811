"""Agents that a farm lends: the beginning of a session, and the place ``farm:HOST:PORT/KEY``.

After the proof of the secret, a session begins as with TVM's servers: the client sends the ticket
that the tracker gave it, and the server answers.  Both add the option `OPTION`, after which the
agent's protocol follows instead of TVM's::

    client                                        server
    RPC_MAGIC, "client:TICKET -agent"   ──>
                  <──  RPC_CODE_SUCCESS, "server:KEY -agent", or
                       RPC_CODE_MISMATCH and the reason: empty if the ticket is not valid
"""

from __future__ import annotations

import logging
import socket
import struct
import time
from contextlib import suppress

from ..errors import AgentError, FarmError
from ..runtime.secret import Address, receive
from ..runtime.tracker import Offer, Tracker, are_agents, check_key, protocol
from .transports import CONNECT_S, SEND_S, SocketStream, Transport, away, connect_to

logger = logging.getLogger(__name__)

#: Word that requests, and promises, the agent's protocol.
OPTION = "-agent"
_HEAD = struct.Struct("<ii")
_MOST_BYTES = 1 << 16
#: How long to wait for a free device before the tracker is asked why there is none, and before it
#: is asked again.
_FIRST_LOOK_S, _LOOK_S = 1.0, 5.0
#: Remedy where a server cannot be reached.
_STATUS = "`tvmflow farm status` shows which servers there are."
#: Tickets to try: a device may be withdrawn just after it was lent.
_TICKETS = 5


class TicketError(AgentError):
    """Raised if a server does not accept a ticket any more."""


class _Lent(Transport):
    """A device that a farm lends."""

    def clean(self) -> str:
        """Raise `AgentError`: the folder belongs to the server's user."""
        raise AgentError(
            f"Removing the agent's folder of {self.name} is not possible: a farm lends the device.",
            remedy="Run `tvmflow devices --clean` on the machine that serves it.",
        )


class LentAgent(_Lent):
    """An agent on the device of a server that a tracker has offered."""

    def __init__(self, offer: Offer):
        self.name, self._offer = f"farm:{offer.address}", offer

    def start(self) -> SocketStream:
        """Begin the session, for which the server starts an agent.

        Raises `TicketError` if the server expects another ticket; `AgentError` if it cannot be
        reached, has no agent, or asks for another secret.
        """
        address, base = self._offer.address, protocol()
        connection = connect_to(
            address,
            "server",
            if_unproven="Start it with the secret file of its tracker (tvmflow farm serve).",
            if_away=_STATUS,
        )
        try:
            send_words(connection, base.RPC_MAGIC, f"client:{self._offer.ticket} {OPTION}")
            # The server may have to send the agent to the phone first.
            code, words = receive_words(connection, CONNECT_S + SEND_S)
            if code == base.RPC_CODE_SUCCESS and OPTION in words.split():
                return SocketStream(connection)
        except OSError as error:
            connection.close()
            raise away(address, "server", error, _STATUS) from error
        connection.close()
        if code == base.RPC_CODE_SUCCESS:
            raise AgentError(
                f"The server at {address} was not used: it serves TVM, and an agent was expected.",
                remedy="Start it with `tvmflow farm serve --on PLACE`.",
            )
        if not words:
            raise TicketError(
                f"The server at {address} refused the session: its device was withdrawn, or lent "
                "to another client, in the meantime.",
                remedy="Run the command again.",
            )
        message, _, remedy = words.partition("\n")
        raise AgentError(f"The server at {address} failed: {message}", remedy=remedy or None)


class FarmPlace(_Lent):
    """Any device of a key at a tracker, which each start waits for."""

    def __init__(self, tracker: Address, key: str):
        self._tracker, self._key = tracker, check_key(key)
        self.name = f"farm:{tracker}/{key}"

    def start(self) -> SocketStream:
        """Borrow a device, and start an agent there."""
        try:
            for _ in range(_TICKETS - 1):
                with suppress(TicketError):
                    return LentAgent(self._wait()).start()
            return LentAgent(self._wait()).start()
        except FarmError as error:
            raise AgentError(error.message, remedy=error.remedy) from error

    def _wait(self) -> Offer:
        """Wait for a device that is free."""
        with Tracker(self._tracker) as tracker, Tracker(self._tracker) as watch:
            told, wait_s = "", _FIRST_LOOK_S
            self._check(watch)
            tracker.request(self._key)
            while (offer := tracker.offer(wait_s)) is None:
                wait_s = _LOOK_S
                if (state := self._check(watch)) != told:
                    logger.warning("No device of the key %s is free; waiting. %s", self._key, state)
                    told = state
        return offer

    def _check(self, tracker: Tracker) -> str:
        """Check that somebody serves the key; return why devices are not free."""
        servers = tracker.servers_of(self._key)
        if not are_agents(servers):
            raise AgentError(
                f"The servers of the key {self._key!r} were not used: they serve TVM, and agents "
                "were expected.",
                remedy="Start them with `tvmflow farm serve --on PLACE`, or tune on them with "
                "`tracker` and `key`.",
            )
        states = [f"{s.address}: {s.about.get('state') or 'in use'}." for s in servers]
        return " ".join(states)


def send_words(connection: socket.socket, code: int, words: str) -> None:
    """Send a code of TVM's protocol with a text."""
    content = words.encode()
    connection.sendall(_HEAD.pack(code, len(content)) + content)


def receive_words(connection: socket.socket, limit_s: float) -> tuple[int, str]:
    """Receive a code of TVM's protocol with a text.  Raises `OSError`."""
    ends = time.monotonic() + limit_s
    code, count = _HEAD.unpack(receive(connection, _HEAD.size, ends))
    if not 0 <= count <= _MOST_BYTES:
        raise ConnectionError("it speaks another protocol")
    return code, receive(connection, count, ends).decode(errors="replace")
