"""Forwarding of one session's bytes between TVM and a server that asked for the secret.

TVM's client opens its connections itself and knows no secret.  Therefore `Address.connect`
(:mod:`tvmflow.runtime.secret`) opens the connection and proves the secret, and TVM connects to a
loopback port that is forwarded to it.  That port accepts one connection; a stranger who is
faster than TVM has no ticket, so the server refuses it.

A separate process forwards the bytes, because TVM may wait for an answer while it holds
Python's lock.  It runs only this file, and ends with the session.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from contextlib import suppress

#: How long to wait for TVM, which connects at once.
_CONNECT_S = 30.0
_PIECE_BYTES = 1 << 18


def lead_to(server: socket.socket) -> tuple[str, int]:
    """Return a loopback address that forwards one connection to a server.

    The forwarding process takes over the server's connection.
    """
    with server, socket.create_server(("127.0.0.1", 0), backlog=1) as listening:
        # Without a time limit: a kernel may take long.
        server.settimeout(None)
        descriptors = (listening.fileno(), server.fileno())
        # The command forks a process that nobody has to wait for.
        subprocess.run(
            [sys.executable, "-I", "-S", __file__, *map(str, descriptors)],
            pass_fds=descriptors,
            stdin=subprocess.DEVNULL,
            # Not inherited: a reader of the command's output waits until all copies close.
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=True,
        )
        host, port = listening.getsockname()
    return host, port


def _carry(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while piece := source.recv(_PIECE_BYTES):
            sink.sendall(piece)
    # The session is over as soon as one side ends.
    for end in (source, sink):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def _main(listening_fd: int, server_fd: int) -> None:
    # Ctrl-C in the terminal is meant for the process that measures.
    os.setsid()
    if os.fork() > 0:
        os._exit(0)
    server = socket.socket(fileno=server_fd)
    with socket.socket(fileno=listening_fd) as listening:
        listening.settimeout(_CONNECT_S)
        try:
            client, _ = listening.accept()
        except OSError:
            return
    client.settimeout(None)
    for end in (client, server):
        # Messages are short: do not delay them to merge packets.
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    back = threading.Thread(target=_carry, args=(server, client), daemon=True)
    back.start()
    _carry(client, server)
    back.join()


if __name__ == "__main__":
    _main(int(sys.argv[1]), int(sys.argv[2]))
