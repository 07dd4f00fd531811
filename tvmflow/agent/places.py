"""Places of agents: what the texts of ``--on`` stand for.

=========================  ==========================================================
``local``                  a process of this machine
``adb``, ``adb:SERIAL``    an Android phone at this machine, by the user's adb
``ssh:USER@HOST``          a board with Linux, by the user's ssh
``tcp:HOST:PORT``          an agent that listens (``agent --listen``)
``farm:HOST:PORT/KEY``     a device that the farm's tracker at the address lends
=========================  ==========================================================
"""

from __future__ import annotations

from pathlib import Path

from ..errors import AgentError, FarmError
from ..runtime.secret import Address
from .adb import Adb
from .lent import FarmPlace
from .transports import Local, Ssh, Tcp, Transport

PLACES = "local, adb, adb:SERIAL, ssh:USER@HOST, tcp:HOST:PORT or farm:HOST:PORT/KEY"


def parse_place(place: str, secret_file: Path | None = None) -> Transport:
    """Return the transport that a text of ``--on`` names.

    Raises `AgentError` if it is none, or the program that it needs is missing.
    """
    kind, _, rest = place.partition(":")
    if place == "local":
        return Local()
    if kind == "adb" and (rest or place == "adb"):
        return Adb(rest or None)
    if kind == "ssh" and rest and not rest.startswith("-"):
        return Ssh(rest)
    address, _, key = rest.rpartition("/")
    if (kind == "tcp" and rest) or (kind == "farm" and address):
        try:
            if kind == "farm":
                return FarmPlace(Address.parse(address, secret_file), key)
            return Tcp(Address.parse(rest, secret_file))
        except FarmError as error:
            raise AgentError(error.message, remedy=error.remedy) from error
    raise AgentError(
        f"The place {place!r} is not known; {PLACES} was expected.",
        remedy="Give one of these, for example `on=adb`.",
    )
