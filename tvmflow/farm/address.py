"""Where trackers and servers listen, and what they must be told first."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path

from ..errors import FarmError
from .secret import Secret

#: The address of this machine that no other machine reaches.
LOOPBACK = "127.0.0.1"
#: Those that stand for all addresses of a machine.
_ALL = ("0.0.0.0", "::")


@dataclass(frozen=True, order=True)
class Address:
    """Where a tracker or a server listens.

    Parameters
    ----------
    host, port
        Of TCP.
    secret
        What clients must know there; it does not tell one address from another.
    """

    host: str
    port: int
    secret: Secret | None = field(default=None, compare=False, repr=False)

    @classmethod
    def parse(cls, text: str, secret_file: Path | None = None) -> Address:
        """Read ``HOST:PORT``; an IPv6 host may stand in brackets.

        Raises
        ------
        FarmError
            If it is not of that form, or the secret cannot be used.
        """
        host, _, port = text.strip().rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
            raise FarmError(
                f"The tracker's address {text!r} was not understood: HOST:PORT was expected.",
                remedy="Give an address such as 192.168.1.10:9190.",
            )
        secret = None if secret_file is None else Secret.read(secret_file)
        return cls(host, int(port), secret)

    def connect(self, limit_s: float) -> socket.socket:
        """Return a connection, on which the secret has been proven if there is one.

        Raises
        ------
        OSError
            If nobody answers.
        UnprovenError
            If the other side asks for no secret, or for another.
        """
        connection = socket.create_connection((self.host, self.port), limit_s)
        try:
            if self.secret is not None:
                self.secret.prove(connection, limit_s)
            connection.settimeout(limit_s)
        except BaseException:
            connection.close()
            raise
        return connection

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address; ``False`` if it has no such name."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return False
    # Without the zone of `fe80::1%eth0`.
    return all(ip_address(str(info[4][0]).partition("%")[0]).is_loopback for info in found)


def is_every_address(host: str) -> bool:
    """Whether a host to listen at stands for all addresses of the machine."""
    return host in _ALL


def check_bind(host: str, secret: Secret | None) -> None:
    """Refuse to listen for strangers.

    Raises
    ------
    FarmError
        If others than this machine can reach the address, and no secret keeps them out.
    """
    if secret is None and not is_loopback(host):
        raise FarmError(
            f"Listening at {host} was refused: other machines can reach that address, and whoever "
            "reaches a farm can run any program on its machines.",
            remedy="Name a secret that only your machines know with `secret_file`, or leave `bind` "
            "out and use a tunnel: docs/farm.md shows both.",
        )
