"""An agent in a thread of the test, which answers what the test says."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress

from tvmflow.agent.frames import ANSWER, ERROR, VERSION, Fields, Frame, FrameError, Kind, read_frame
from tvmflow.agent.transports import SocketStream, Stream, Transport

#: Answers to a request: frames, or bytes that are none; ``None`` ends the connection.
Answers = Iterable["Frame | bytes | None"]


def answer(to: Frame, fields: Fields | None = None) -> Frame:
    """Return the answer to a request."""
    return Frame(to.kind | ANSWER, to.request, b"" if fields is None else fields.payload)


def error(to: Frame, code: int, message: str = "It failed.", remedy: str = "", detail: int = 0):
    """Return an error that answers a request."""
    return Frame(ERROR, to.request, Fields().u32(code, detail).text(message).text(remedy).payload)


def greeting(to: Frame) -> Frame:
    """Return the answer to ``HELLO``."""
    fields = Fields().u32(VERSION, 0, 4711).u64(1 << 30)
    return answer(to, fields.text("0123456789abcdef").text("linux-x64").text("/folder"))


class FakeAgent(Transport):
    """A transport to an agent that records requests.

    ``handle`` returns the answers to a request, or nothing to have the usual ones: the greeting,
    empty answers to ``PING`` and ``CANCEL``, and no blobs.
    """

    name = "fake"

    def __init__(self, handle: Callable[[Frame], Answers | None] = lambda _: None):
        self.handle = handle
        self.requests: list[Frame] = []
        self.said = ""  #: The text that `lost` reports.

    def start(self) -> Stream:
        """Start the thread."""
        ours, theirs = socket.socketpair()
        self.thread = threading.Thread(target=self._serve, args=(theirs,), daemon=True)
        self.thread.start()
        return _PairStream(ours)

    def clean(self) -> str:
        """Do nothing."""
        return ""

    def lost(self) -> str:
        """Return `said`."""
        return self.said

    def kinds(self) -> list[int]:
        """Return the kinds of the requests that came, without pings."""
        return [frame.kind for frame in self.requests if frame.kind != Kind.PING]

    def _serve(self, connection: socket.socket) -> None:
        stream = connection.makefile("rb")
        with connection, stream, suppress(OSError, FrameError):
            while (frame := read_frame(stream.read)) is not None:
                self.requests.append(frame)
                answers = self.handle(frame)
                for each in self._usual(frame) if answers is None else answers:
                    if each is None:
                        return
                    connection.sendall(each if isinstance(each, bytes) else each.encoded())

    def _usual(self, frame: Frame) -> Answers:
        if frame.kind == Kind.HELLO:
            return [greeting(frame)]
        if frame.kind == Kind.HAVE:
            count = int.from_bytes(frame.payload[:4], "little")
            return [answer(frame, Fields().raw(bytes(count)))]
        return [answer(frame)] if frame.kind in (Kind.PING, Kind.CANCEL) else []


class _PairStream(SocketStream):
    """A socket without the options of TCP."""

    def __init__(self, connection: socket.socket):
        self._connection, self._file = connection, connection.makefile("rb")
