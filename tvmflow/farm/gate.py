"""A listening socket that lets only those in who know the secret.

TVM's tracker and servers take connections from a listening socket.  A :class:`Gate` stands in its
place: it accepts, asks each client for the secret, and only what has passed is there to be
accepted by TVM, which gets the client's own socket.  Who waits or talks nonsense keeps nobody
else from being asked.
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

from .secret import Secret, UnprovenError

#: A client that knows the secret answers at once.
ASK_S = 5.0
#: So many are asked at the same time; more are turned away.
_ASKED_AT_ONCE = 32
#: Refusals of more addresses are told as those of others: strangers do not fill the memory.
_REMEMBERED = 20
_OTHERS = "other addresses"

logger = logging.getLogger(__name__)


class Gate:
    """What TVM uses of a listening socket.

    Parameters
    ----------
    listening
        Belongs to the gate from now on.
    secret
        What clients must prove that they know.
    """

    def __init__(self, listening: socket.socket, secret: Secret):
        self._listening = listening
        self._secret = secret
        self._passed: deque[tuple[socket.socket, tuple[str, int]]] = deque()
        #: Readable when a connection has passed: what `select` and event loops look at.
        self._ready, self._signal = socket.socketpair()
        self._free = threading.BoundedSemaphore(_ASKED_AT_ONCE)
        self._lock = threading.Lock()
        self._refused: Counter[str] = Counter()
        threading.Thread(target=self._watch, name="tvmflow-gate", daemon=True).start()

    def fileno(self) -> int:
        """Return the descriptor that is readable when `accept` has something."""
        return self._ready.fileno()

    def setblocking(self, flag: bool) -> None:
        """Whether `accept` waits."""
        self._ready.setblocking(flag)

    def accept(self) -> tuple[socket.socket, tuple[str, int]]:
        """Return a connection that has passed, and where it comes from.

        Raises
        ------
        BlockingIOError
            If there is none, and none is to be waited for.
        """
        self._ready.recv(1)
        return self._passed.popleft()

    def close(self) -> None:
        """Stop listening."""
        # Wakes up the thread that accepts, which closing alone does not.
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._signal.close()
        self._ready.close()

    def take_refused(self) -> list[str]:
        """Say who was turned away since the last call."""
        with self._lock:
            refused, self._refused = self._refused, Counter()
        return [
            f"A connection from {who} was refused."
            if count == 1
            else f"{count} connections from {who} were refused."
            for who, count in refused.items()
        ]

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
            if not self._free.acquire(blocking=False):
                self._refuse(connection, host, "too many others were being asked for the secret")
                continue
            threading.Thread(target=self._ask, args=(connection, host, port), daemon=True).start()

    def _ask(self, connection: socket.socket, host: str, port: int) -> None:
        try:
            self._secret.demand(connection, ASK_S)
            connection.settimeout(None)
            self._passed.append((connection, (host, port)))
            self._signal.send(b"\0")
        except (OSError, UnprovenError) as error:
            self._refuse(connection, host, str(error))
        finally:
            self._free.release()

    def _refuse(self, connection: socket.socket, host: str, reason: str) -> None:
        # Not only closed: a session that was forked meanwhile has the socket, too.
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
) -> tuple[socket.socket | Gate, int]:
    """Listen at the first of the ports that is free; return that, too.

    Raises
    ------
    OSError
        If none is free, or the address is not this machine's.
    """
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
        return (listening if secret is None else Gate(listening, secret)), port
    raise failure
