"""Sessions with servers of tvmflow, for whoever needs more of them than TVM's own functions."""

from __future__ import annotations

import json
from typing import Any

from ..errors import FarmError
from .about import ABOUT_FUNCTION, About, check_version
from .tracker import Address, Offer, Tracker

#: A server that is free is lent at once, and one that another session has just left soon.
OFFER_S = 30.0


def borrow(tracker: Address, key: str) -> Offer | None:
    """Ask for a server of a key; ``None`` when none became free in time."""
    with Tracker(tracker) as connection:
        connection.request(key)
        return connection.offer(OFFER_S)


def connect(offer: Offer, session_s: float) -> tuple[Any, About]:
    """Open a session with a server that was offered.

    Parameters
    ----------
    session_s
        After so many seconds the server ends the session, whatever is running.

    Returns
    -------
    tuple
        TVM's session, and what the server tells about itself.

    Raises
    ------
    FarmError
        If it cannot be reached, is no server of tvmflow, or one of another version.
    """
    from tvm import rpc

    address = offer.address
    try:
        remote = rpc.connect(address.host, address.port, offer.ticket, session_timeout=session_s)
    except (OSError, RuntimeError) as error:
        raise FarmError(
            f"A session with the server at {address} could not be opened: {last_line(error)}",
            remedy="`tvmflow farm status` shows which servers there are.",
        ) from error
    try:
        about = About.read(json.loads(remote.get_function(ABOUT_FUNCTION)()))
    except AttributeError:
        about = None
    if about is None:
        raise FarmError(
            f"The server at {address} is no server of tvmflow: it tells nothing about itself that "
            "this version understands.",
            remedy="Start one with `tvmflow farm serve` there.",
        )
    check_version(address, about)
    return remote, about


def last_line(error: Exception) -> str:
    """Return what went wrong; what TVM's errors say before is a traceback of C++."""
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]
