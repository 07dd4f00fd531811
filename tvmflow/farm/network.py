"""Listeners of a farm, which ask clients for the shared secret (:mod:`tvmflow.runtime.secret`).

TVM's servers run any program that they receive.  Therefore a tracker or server that others can
reach authenticates clients before TVM reads a byte.
"""

from __future__ import annotations

import errno
import logging
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address

from ..errors import FarmError
from ..runtime.secret import BUSY, Secret, UnprovenError

logger = logging.getLogger(__name__)


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
