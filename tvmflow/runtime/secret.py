"""Addresses of programs that listen, and the shared secret that they ask for.

Whoever reaches a tracker, a server or an agent can run any program there.  Therefore one that
others can reach authenticates clients before anything else: it sends a challenge, the client
answers with its own challenge and a proof, HMAC-SHA256 over both, and receives a proof in return.
The secret is never sent, a recorded answer is useless for another connection, and a client sends no
kernels to a server that does not know the secret.  The traffic that follows is not encrypted.

::

    client                                      the other side
                  <──  GREETING, challenge
    challenge, proof("client")  ──>
                  <──  proof("server"), or BUSY

A client that is dropped to make room for others gets ``BUSY`` in place of the proof.
"""

from __future__ import annotations

import hmac
import os
import secrets
import socket
import stat
import time
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import FarmError
from .regular_files import open_file

#: First bytes that a tracker or server with a secret sends; TVM's own wait for the client's.
GREETING = b"tvmflow\x01"
#: Shortest secret; shorter ones can be guessed.
SHORTEST_BYTES = 16
#: Longest secret; a longer file was named by mistake.
LONGEST_BYTES = 4096

_CHALLENGE_BYTES = 32
_PROOF_BYTES = 32
#: Sent in place of a proof to a client that was dropped to make room for others.
BUSY = b"tvmflow: dropped, try again".ljust(_PROOF_BYTES, b"\0")
_MAKE = "(umask 077; openssl rand -hex 32 > {})"


class UnprovenError(Exception):
    """Raised if the other side does not know the secret, or does not ask for one."""


class BusyError(ConnectionError):
    """Raised if the other side dropped this connection in favour of others."""


@dataclass(frozen=True)
class Secret:
    """Shared secret of the tracker, servers and clients of a farm, read from a file."""

    #: Path of the file, for messages.
    file: Path
    #: Content without surrounding whitespace.
    value: bytes = field(repr=False)

    @classmethod
    def read(cls, file: Path) -> Secret:
        """Read a secret file, which other users must not be able to read.

        Raises `FarmError` if it cannot be read, others can read it, or it can be guessed.
        """
        try:
            with open_file(file) as opened:
                mode = os.fstat(opened.fileno()).st_mode
                value = opened.read(LONGEST_BYTES + 1).strip()
        except OSError as error:
            raise FarmError(
                f"Reading the secret file {file} failed: {error.strerror or error}.",
                remedy=f"Make one, and copy it to all machines of the farm: {_MAKE.format(file)}",
            ) from error
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise FarmError(
                f"The secret file {file} was not used: other users of this machine have access "
                f"(mode {stat.S_IMODE(mode):03o}).",
                remedy=f"chmod 600 {file}",
            )
        if not SHORTEST_BYTES <= len(value) <= LONGEST_BYTES:
            found, expected = f"{len(value)} bytes", f"at least {SHORTEST_BYTES}"
            if len(value) > LONGEST_BYTES:
                found, expected = f"more than {LONGEST_BYTES} bytes", f"at most {LONGEST_BYTES}"
            raise FarmError(
                f"The secret file {file} was not used: it has {found}, where {expected} were "
                "expected.",
                remedy=f"Make a secret that nobody guesses: {_MAKE.format(file)}",
            )
        return cls(file, value)

    def prove(self, connection: socket.socket, limit_s: float) -> None:
        """Authenticate as a client, and check the server's proof.

        Raises `UnprovenError` if the server asks for no secret, or has another; `BusyError` if it
        has too many waiting connections; `OSError` if the connection breaks.
        """
        ends = time.monotonic() + limit_s
        try:
            hello = receive(connection, len(GREETING) + _CHALLENGE_BYTES, ends)
        except TimeoutError:
            raise UnprovenError("it asks for no secret") from None
        if not hello.startswith(GREETING):
            raise UnprovenError("it asks for no secret that this version understands")
        theirs, ours = hello[len(GREETING) :], secrets.token_bytes(_CHALLENGE_BYTES)
        connection.sendall(ours + self._proof(b"client", theirs, ours))
        try:
            proof = receive(connection, _PROOF_BYTES, ends)
        except OSError:
            # A server that refuses a proof closes the connection.
            raise UnprovenError(f"it refused the secret of {self.file}") from None
        if proof == BUSY:
            raise BusyError("it has too many connections that did not give the secret; try again")
        if not hmac.compare_digest(proof, self._proof(b"server", theirs, ours)):
            raise UnprovenError(f"it does not know the secret of {self.file}")

    def demand(self, connection: socket.socket, limit_s: float) -> None:
        """Authenticate a client as a server, and send the server's proof.

        Raises `UnprovenError` if the client's proof is wrong or late; `OSError` if the connection
        breaks.
        """
        ends = time.monotonic() + limit_s
        ours = secrets.token_bytes(_CHALLENGE_BYTES)
        connection.settimeout(limit_s)
        connection.sendall(GREETING + ours)
        try:
            answer = receive(connection, _CHALLENGE_BYTES + _PROOF_BYTES, ends)
        except TimeoutError:
            raise UnprovenError("it did not answer for the secret in time") from None
        except OSError:
            raise UnprovenError("it gave no secret") from None
        theirs, proof = answer[:_CHALLENGE_BYTES], answer[_CHALLENGE_BYTES:]
        if not hmac.compare_digest(proof, self._proof(b"client", ours, theirs)):
            raise UnprovenError("it gave a wrong secret")
        connection.sendall(self._proof(b"server", ours, theirs))

    def _proof(self, side: bytes, server_challenge: bytes, client_challenge: bytes) -> bytes:
        # The side is part of the proof, so that one side's proof cannot be replayed as the other's.
        return hmac.digest(self.value, side + server_challenge + client_challenge, "sha256")


def receive(connection: socket.socket, count: int, ends: float) -> bytes:
    """Receive exactly ``count`` bytes before a time of the monotonic clock."""
    received = b""
    while len(received) < count:
        left_s = ends - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("no answer in time")
        connection.settimeout(left_s)
        piece = connection.recv(count - len(received))
        if not piece:
            raise ConnectionResetError("the connection was closed")
        received += piece
    return received


# -- addresses ----------------------------------------------------------------------------------


@dataclass(frozen=True, order=True)
class Address:
    """Address at which a tracker or a server listens."""

    host: str
    port: int
    #: Secret that clients need there; not compared.
    secret: Secret | None = field(default=None, compare=False, repr=False)

    @classmethod
    def parse(cls, text: str, secret_file: Path | None = None) -> Address:
        """Read ``HOST:PORT``; an IPv6 host may be in brackets.

        Raises `FarmError` if it is not of that form, or the secret cannot be used.
        """
        host, _, port = text.strip().rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
            raise FarmError(
                f"The address {text!r} was not understood: HOST:PORT was expected.",
                remedy="Give an address such as 192.168.1.10:9190.",
            )
        secret = None if secret_file is None else Secret.read(secret_file)
        return cls(host, int(port), secret)

    def connect(self, limit_s: float) -> socket.socket:
        """Open a connection, authenticated if there is a secret.

        Raises `OSError` if nobody answers, `BusyError` if too many connections wait there, and
        `UnprovenError` if the other side asks for no secret, or for another.
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
