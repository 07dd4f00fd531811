"""Sessions with servers of tvmflow, for whoever needs more of them than TVM's own functions."""

from __future__ import annotations

import json
from typing import Any

from ..errors import FarmError
from .about import ABOUT_FUNCTION, About, check_version
from .tracker import Offer


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
        If it is no server of tvmflow, or one of another version.
    """
    from tvm import rpc

    address = offer.address
    remote = rpc.connect(address.host, address.port, offer.ticket, session_timeout=session_s)
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
