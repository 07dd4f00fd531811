"""A TCP relay that is slow, silent or cut when a test wants it."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress

#: Bytes that are forwarded at once.
_PIECE = 4096


class Relay:
    """Forwards connections to a port of this machine."""

    def __init__(self, port: int):
        #: Rate of each direction; ``None`` for no limit.
        self.bytes_per_s: float | None = None
        #: Bytes that were forwarded to the server, and back.
        self.sent = self.received = 0
        #: Forward nothing more, without closing, when this many bytes were forwarded to the server.
        self.silent_after: int | None = None
        self._to = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def is_silent(self) -> bool:
        """Return whether nothing is forwarded."""
        return self.silent_after is not None and self.sent >= self.silent_after

    def cut(self) -> None:
        """Close all connections."""
        for connection in self._sockets:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End the relay."""
        self._listening.close()
        self.cut()
        for connection in self._sockets:
            connection.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                server = socket.create_connection(("127.0.0.1", self._to))
                self._sockets += [client, server]
                for ends in ((client, server, True), (server, client, False)):
                    threading.Thread(target=self._forward, args=ends, daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket, is_sent: bool) -> None:
        with suppress(OSError):
            while piece := source.recv(_PIECE):
                if self.is_silent:
                    continue
                if self.bytes_per_s is not None:
                    time.sleep(len(piece) / self.bytes_per_s)
                target.sendall(piece)
                if is_sent:
                    self.sent += len(piece)
                else:
                    self.received += len(piece)
        if not self.is_silent:
            with suppress(OSError):
                target.shutdown(socket.SHUT_WR)
