"""Carries the bytes of one session between TVM and a server that asked for the secret.

TVM's client opens its connections itself, and knows of no secret.  So the connection to the
server is opened and proven by :meth:`.network.Address.connect`, and TVM connects to a port of
the loopback that leads there.  That port takes one connection; a stranger who is faster than
TVM has no ticket, and the server turns it away.

The bytes are carried by a process of its own: TVM may wait for an answer while it holds
Python's lock.  It runs this file alone, and ends with the session.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from contextlib import suppress

#: TVM connects at once.
_CONNECT_S = 30.0
_PIECE_BYTES = 1 << 18


def lead_to(server: socket.socket) -> tuple[str, int]:
    """Return an address of the loopback that one connection to reaches a server.

    The server's connection belongs to the other process from now on.
    """
    with server, socket.create_server(("127.0.0.1", 0), backlog=1) as listening:
        # Neither has a time limit there: a kernel may take long.
        server.settimeout(None)
        descriptors = (listening.fileno(), server.fileno())
        # It leaves a process behind that nobody has to wait for.
        subprocess.run(
            [sys.executable, "-I", "-S", __file__, *map(str, descriptors)],
            pass_fds=descriptors,
            stdin=subprocess.DEVNULL,
            # Not those of the command, whose reader waits until all have closed them.
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
    # Whichever side ends, the session is over.
    for end in (source, sink):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def _main(listening_fd: int, server_fd: int) -> None:
    # Ctrl-C of the terminal is for the process that measures.
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
        # Questions and answers are short: none waits for more to be sent with it.
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    back = threading.Thread(target=_carry, args=(server, client), daemon=True)
    back.start()
    _carry(client, server)
    back.join()


if __name__ == "__main__":
    _main(int(sys.argv[1]), int(sys.argv[2]))
