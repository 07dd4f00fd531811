"""The secret of a farm: who does not know it gets no further than this.

TVM's servers run whatever they are sent.  So a tracker or server that others can reach asks
before TVM reads a single byte: it sends a challenge, the client answers with a challenge of its
own and a proof, HMAC-SHA256 over both, and gets a proof in return.  The secret itself is never
sent, an answer that was overheard is of no use for another connection, and a client does not
send its kernels to a server that does not know the secret either.  What follows is not
encrypted.

::

    client                                    tracker or server
                  <──  GREETING, challenge
    challenge, proof("client")  ──>
                  <──  proof("server")
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

#: What a tracker or server that has a secret says first; TVM's wait for the client.
GREETING = b"tvmflow\x01"
#: Shorter ones can be guessed.
SHORTEST_BYTES = 16

_CHALLENGE_BYTES = 32
_PROOF_BYTES = 32
_MAKE = "(umask 077; openssl rand -hex 32 > {})"


class UnprovenError(Exception):
    """The other side does not know the secret, or knows nothing of secrets."""


@dataclass(frozen=True)
class Secret:
    """The content of a file that tracker, servers and clients of a farm share.

    Parameters
    ----------
    file
        Where it was read, for messages.
    value
        The content, without the space around it.
    """

    file: Path
    value: bytes = field(repr=False)

    @classmethod
    def read(cls, file: Path) -> Secret:
        """Read a file that nobody else may read.

        Raises
        ------
        FarmError
            If it cannot be read, others can read it, or it can be guessed.
        """
        try:
            with open(file, "rb") as opened:
                mode = os.fstat(opened.fileno()).st_mode
                value = opened.read().strip()
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
        if len(value) < SHORTEST_BYTES:
            raise FarmError(
                f"The secret file {file} was not used: it has {len(value)} bytes, where at least "
                f"{SHORTEST_BYTES} were expected.",
                remedy=f"Make a secret that nobody guesses: {_MAKE.format(file)}",
            )
        return cls(file, value)

    def prove(self, connection: socket.socket, limit_s: float) -> None:
        """Show that this side knows the secret, and see that the other does.

        Raises
        ------
        UnprovenError
            If the other side asks for no secret, or has another.
        OSError
            If the connection breaks.
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
            # It closes the connection.
            raise UnprovenError(f"it refused the secret of {self.file}") from None
        if not hmac.compare_digest(proof, self._proof(b"server", theirs, ours)):
            raise UnprovenError(f"it does not know the secret of {self.file}")

    def demand(self, connection: socket.socket, limit_s: float) -> None:
        """Let the other side show that it knows the secret, and show it, too.

        Raises
        ------
        UnprovenError
            If it does not, in time.
        OSError
            If the connection breaks.
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
        # With the side: what one sends is no answer for the other.
        return hmac.digest(self.value, side + server_challenge + client_challenge, "sha256")


def receive(connection: socket.socket, count: int, ends: float) -> bytes:
    """Return so many bytes, however slowly they come, before a time of the monotonic clock.

    Raises
    ------
    TimeoutError
        If they do not come in time.
    OSError
        If the connection ends.
    """
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
