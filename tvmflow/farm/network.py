"""Addresses of a farm, the shared secret, and the listener that asks for it.

TVM's servers run any program that they receive.  Therefore a tracker or server that others can
reach authenticates clients before TVM reads a byte: it sends a challenge, the client answers with
its own challenge and a proof, HMAC-SHA256 over both, and receives a proof in return.  The secret
is never sent, a recorded answer is useless for another connection, and a client sends no kernels
to a server that does not know the secret.  The traffic that follows is not encrypted.

::

    client                                    tracker or server
                  <──  GREETING, challenge
    challenge, proof("client")  ──>
                  <──  proof("server"), or BUSY

A client that is dropped to make room for others gets ``BUSY`` in place of the proof.
"""

from __future__ import annotations

import errno
import hmac
import logging
import os
import secrets
import socket
import stat
import threading
import time
from collections import Counter, deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path

from ..errors import FarmError
from ..runtime.regular_files import open_file

logger = logging.getLogger(__name__)

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
                f"The tracker's address {text!r} was not understood: HOST:PORT was expected.",
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


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address; ``False`` for an unknown name."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return False
    # Without the zone of `fe80::1%eth0`.
    return all(ip_address(str(info[4][0]).partition("%")[0]).is_loopback for info in found)


def check_bind(host: str, secret: Secret | None) -> None:
    """Refuse to listen without a secret where other machines can connect.

    Raises `FarmError` if other machines can reach the address and there is no secret.
    """
    if secret is None and not is_loopback(host):
        raise FarmError(
            f"Listening at {host} was refused: other machines can reach that address, and whoever "
            "reaches a farm can run any program on its machines.",
            remedy="Name a secret that only your machines know with `secret_file`, or leave `bind` "
            "out and use a tunnel: docs/farm.md shows both.",
        )


# -- listening ----------------------------------------------------------------------------------

#: Time limit of a client's proof; a client that knows the secret answers at once.
ASK_S = 5.0
#: Most connections that wait for a proof, from all addresses and from one.  A proof takes one round
#: trip, so only silent clients fill these, and the oldest is dropped first.
_UNPROVEN, _UNPROVEN_FROM_ONE = 64, 16
#: Addresses whose refusals are counted separately; the rest are counted together to bound memory.
_REMEMBERED = 20
_OTHERS = "other addresses"


@dataclass(eq=False)
class _Unproven:
    """A connection without a proof yet."""

    connection: socket.socket
    host: str
    port: int
    #: Why it was dropped to make room; empty if it was not.
    dropped: str = ""


class SecretListener:
    """A listening socket that passes on only authenticated connections.

    It has the methods of a socket that TVM's tracker and servers use: it accepts connections, asks
    each client for the secret, and `accept` returns the sockets of those that proved it.  A silent
    client does not block others: when too many wait, the oldest from the address with most of them
    is dropped.
    """

    def __init__(self, listening: socket.socket, secret: Secret):
        self._listening = listening
        self._secret = secret
        self._passed: deque[tuple[socket.socket, tuple[str, int]]] = deque()
        #: Readable when a connection has passed, for `select` and event loops.
        self._ready, self._signal = socket.socketpair()
        self._lock = threading.Lock()
        #: Connections without a proof, oldest first.
        self._unproven: list[_Unproven] = []
        self._refused: Counter[str] = Counter()
        threading.Thread(target=self._watch, name="tvmflow-listener", daemon=True).start()

    def fileno(self) -> int:
        """Return the descriptor that is readable when `accept` has something."""
        return self._ready.fileno()

    def setblocking(self, flag: bool) -> None:
        """Choose whether `accept` waits."""
        self._ready.setblocking(flag)

    def accept(self) -> tuple[socket.socket, tuple[str, int]]:
        """Return an authenticated connection and its address; blocks like a socket."""
        self._ready.recv(1)
        return self._passed.popleft()

    def close(self) -> None:
        """Stop listening."""
        # Closing alone does not wake up the thread that accepts.
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._signal.close()
        self._ready.close()

    def take_refused(self) -> list[str]:
        """Return a sentence for each address that was refused since the last call."""
        with self._lock:
            refused, self._refused = self._refused, Counter()
        one, many = "A connection from {} was refused.", "{1} connections from {0} were refused."
        return [(one if n == 1 else many).format(who, n) for who, n in refused.items()]

    def _watch(self) -> None:
        while True:
            try:
                connection, (host, port, *_) = self._listening.accept()
            except OSError:
                if self._listening.fileno() < 0:
                    return
                # Too many open files, say, or a client that is gone already.
                time.sleep(0.1)
                continue
            client = _Unproven(connection, host, port)
            with self._lock:
                self._make_room(host)
                self._unproven.append(client)
            threading.Thread(target=self._ask, args=(client,), daemon=True).start()

    def _make_room(self, host: str) -> None:
        """Drop the oldest connection of an address that has too many; the lock is held."""
        counts = Counter(client.host for client in self._unproven)
        if counts[host] >= _UNPROVEN_FROM_ONE:
            reason = f"{_UNPROVEN_FROM_ONE} connections of this address had not given the secret"
        elif len(self._unproven) >= _UNPROVEN:
            host, _ = counts.most_common(1)[0]
            reason = f"{_UNPROVEN} connections had not given the secret"
        else:
            return
        client = next(client for client in self._unproven if client.host == host)
        self._unproven.remove(client)
        client.dropped = f"dropped: {reason}"
        # Wakes up the thread that waits for the proof.
        with suppress(OSError):
            client.connection.shutdown(socket.SHUT_RD)

    def _ask(self, client: _Unproven) -> None:
        failure = ""
        try:
            self._secret.demand(client.connection, ASK_S)
        except (OSError, UnprovenError) as error:
            failure = str(error)
        with self._lock:
            if client in self._unproven:
                self._unproven.remove(client)
        # This includes a client whose proof arrived while it was dropped: its socket is shut down.
        if client.dropped:
            with suppress(OSError):
                client.connection.send(BUSY, socket.MSG_DONTWAIT)
        if client.dropped or failure:
            self._refuse(client.connection, client.host, client.dropped or failure)
            return
        client.connection.settimeout(None)
        self._passed.append((client.connection, (client.host, client.port)))
        self._signal.send(b"\0")

    def _refuse(self, connection: socket.socket, host: str, reason: str) -> None:
        # Shut down as well as closed: a session that was forked meanwhile has the socket, too.
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        connection.close()
        logger.warning("A connection from %s was refused: %s.", host, reason)
        with self._lock:
            who = f"{host} ({reason})"
            if who not in self._refused and len(self._refused) >= _REMEMBERED:
                who = _OTHERS
            self._refused[who] += 1


def listen(
    host: str, ports: Iterable[int], secret: Secret | None
) -> tuple[socket.socket | SecretListener, int]:
    """Listen at the first free port; return the socket and the port, or raise `OSError`."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family = found[0][0]
    for port in ports:
        try:
            listening = socket.create_server((host, port), family=family, backlog=16)
        except OSError as error:
            failure = error
            if error.errno == errno.EADDRINUSE:
                continue
            raise
        port = listening.getsockname()[1]
        return (listening if secret is None else SecretListener(listening, secret)), port
    raise failure
