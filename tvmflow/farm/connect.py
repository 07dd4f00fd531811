"""Sessions with servers of tvmflow, for whoever needs more of them than TVM's own functions."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING

from ..errors import FarmError
from .forward import lead_to
from .network import Address, UnprovenError
from .tracker import ABOUT_FUNCTION, Offer, ServerInfo, Tracker, check_version

if TYPE_CHECKING:
    from tvm.rpc import RPCSession

#: A server that is free is lent at once, and one that another session has just left soon.
OFFER_S = 30.0


def borrow(tracker: Address, key: str) -> Offer | None:
    """Ask for a server of a key; ``None`` when none became free in time."""
    with Tracker(tracker) as connection:
        connection.request(key)
        return connection.offer(OFFER_S)


def connect(offer: Offer, session_s: float) -> tuple[RPCSession, ServerInfo]:
    """Open a session with a server that was offered; return what it tells about itself, too.

    After ``session_s`` the server ends the session, whatever is running.

    Raises `FarmError` if it cannot be reached, is no server of tvmflow, or one of another version.
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
    """Return what a session's server tells about itself; a stock server tells nothing."""
    with suppress(AttributeError):
        told = remote.get_function(ABOUT_FUNCTION)()
        with suppress(ValueError):
            return ServerInfo.read(json.loads(told))
    return None


def open_session(offer: Offer, session_s: float) -> RPCSession:
    """Open TVM's session as `connect` does, with any server; prove the secret if there is one.

    Raises `FarmError` if the server asks for no secret, or for another; `OSError` or `RuntimeError`
    if it cannot be reached, or does not let the ticket in.
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
    """Return what went wrong; what TVM's errors say before is a traceback of C++."""
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]
