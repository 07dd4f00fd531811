"""Sessions with tvmflow servers, whose extra functions stock servers do not have."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING

from ..errors import FarmError
from ..runtime.secret import Address, UnprovenError
from ..runtime.tracker import Offer, Tracker, are_agents
from .forward import lead_to
from .server_info import ABOUT_FUNCTION, ServerInfo, check_version

if TYPE_CHECKING:
    from tvm.rpc import RPCSession

#: How long to wait for a server: free ones are lent at once, just released ones soon.
OFFER_S = 30.0


def borrow(tracker: Address, key: str) -> Offer | None:
    """Request a server of a key; return ``None`` if none became free in time.

    Raises `FarmError` if the servers are agents, which do not run TVM.
    """
    with Tracker(tracker) as connection:
        if are_agents(connection.summary().serving(key)):
            raise FarmError(
                f"The servers of the key {key!r} were not used: sessions with TVM were expected, "
                "and they have agents.",
                remedy=f"Name a device of them with `on=farm:{tracker}/{key}`.",
            )
        connection.request(key)
        return connection.offer(OFFER_S)


def connect(offer: Offer, session_s: float) -> tuple[RPCSession, ServerInfo]:
    """Open a session with an offered server; return the session and the server's description.

    The server ends the session after ``session_s`` seconds, even during a run.

    Raises `FarmError` if it cannot be reached, is not a tvmflow server, or has another version.
    """
    address = offer.address
    try:
        remote = open_session(offer, session_s)
    except (OSError, RuntimeError) as error:
        raise FarmError(
            f"A session with the server at {address} could not be opened: {last_line(error)}",
            remedy="`tvmflow farm status` shows which servers there are.",
        ) from error
    if (about := about_of(remote)) is None:
        raise FarmError(
            f"The server at {address} is no server of tvmflow: it tells nothing about itself that "
            "this version understands.",
            remedy="Start one with `tvmflow farm serve` there.",
        )
    check_version(address, about)
    return remote, about


def about_of(remote: RPCSession) -> ServerInfo | None:
    """Return the description of a session's server; ``None`` for a stock server."""
    with suppress(AttributeError):
        told = remote.get_function(ABOUT_FUNCTION)()
        with suppress(ValueError):
            return ServerInfo.read(json.loads(told))
    return None


def open_session(offer: Offer, session_s: float) -> RPCSession:
    """Open TVM's session with any server, stock ones included; prove the secret if there is one.

    Raises `FarmError` if the server asks for no secret, or for another; `OSError` or `RuntimeError`
    if it cannot be reached, or refuses the ticket.
    """
    from tvm import rpc

    host, port = offer.address.host, offer.address.port
    if offer.address.secret is not None:
        try:
            host, port = lead_to(offer.address.connect(OFFER_S))
        except UnprovenError as error:
            raise FarmError(
                f"The server at {offer.address} was not used: {error}.",
                remedy="Start it with the secret file of its tracker (tvmflow farm serve).",
            ) from error
    return rpc.connect(host, port, offer.ticket, session_timeout=session_s)


def last_line(error: Exception) -> str:
    """Return the last line of an error: TVM's errors begin with a C++ traceback."""
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]
