"""A connection to an agent: requests and their answers.

Two threads read and write frames, so that Ctrl-C interrupts a caller between frames, never within
one, and so that the agent hears from this host while nobody asks it anything.
"""

from __future__ import annotations

import hashlib
import itertools
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

from .._versions import __version__
from ..errors import AgentError
from ..ir.units import bytes_text
from .frames import (
    ANSWER,
    ERROR,
    MOST_ITEMS,
    MOST_LIMIT_MS,
    PART,
    PIECE_BYTES,
    VERSION,
    Code,
    FieldReader,
    Fields,
    Frame,
    FrameError,
    Kind,
    read_frame,
)
from .transports import Stream, Transport, signal_text

#: Time of silence after which the agent ends; this side sends three frames in it.
SILENCE_S = 30.0
#: Time limit of requests that do not say another.
LIMIT_S = 60.0
#: Speed of the slowest link.
_SLOWEST_BYTES_PER_S = 20e3
#: Time that an answer may be on its way after the request's limit.
_LATE_S = 30.0
#: Time until a cancelled request is answered; the agent ends its session after 5 s.
_CANCEL_S = 10.0
#: Frames that wait for being written, or for the caller.
_WAITING = 16
#: Reason why a connection is over.
_CLOSED = "closed by this host"

#: Content of a blob: bytes, or a file.
Blob: TypeAlias = bytes | bytearray | memoryview | Path


def carrying_limit_s(size_bytes: int) -> float:
    """Return the time limit of a request that carries so many bytes over the slowest link."""
    return LIMIT_S + size_bytes / _SLOWEST_BYTES_PER_S


class Connection:
    """A connection to an agent; requests of several threads wait for each other.

    Raises `AgentError` if there is none, it does not answer, or has another version.
    """

    def __init__(self, transport: Transport):
        self.transport = transport
        #: Bytes that were sent, for measurements.
        self.sent_bytes = 0
        self._numbers = itertools.count(1)
        self._asking = threading.Lock()
        self._outgoing: queue.Queue[bytes | None] = queue.Queue(_WAITING)
        #: Frames of the current request; ``None`` wakes its caller up at the end.
        self._incoming: queue.Queue[Frame | None] = queue.Queue(_WAITING)
        #: Number of the request whose answer is waited for; 0 for none.
        self._current = 0
        self._heard = time.monotonic()
        #: Reason why there will be no more frames.
        self._over: str | None = None
        #: Digests of files, by path, time of the last change and size.
        self._digests: dict[tuple[Path, int, int], bytes] = {}
        #: Digests of blobs that the agent keeps for this connection.
        self._there: set[bytes] = set()
        self._stream: Stream = transport.start()
        self._threads = [
            threading.Thread(target=run, name=f"tvmflow-agent-{run.__name__}", daemon=True)
            for run in (self._read_frames, self._write_frames)
        ]
        for thread in self._threads:
            thread.start()
        try:
            hello = Fields().u32(VERSION, VERSION, 0, round(SILENCE_S * 1e3))
            answer = self.request(Kind.HELLO, hello.text(f"tvmflow {__version__}"))
            answer.u32(), answer.u32()
            self.process_id, self.limit_bytes = answer.u32(), answer.u64()
            #: Digest of the agent's sources, name of its host, and its folder.
            self.build, self.host_name, self.folder = (answer.text() for _ in range(3))
        except BaseException:
            self.close()
            raise

    def request(
        self,
        kind: Kind,
        fields: Fields | None = None,
        limit_s: float = LIMIT_S,
        on_part: Callable[[FieldReader], object] | None = None,
    ) -> FieldReader:
        """Send a request, pass each part of its answer to ``on_part``, and return the answer.

        Ctrl-C cancels the request.  Raises `AgentError` if the agent refuses it, the session ends
        during it, it takes longer than ``limit_s``, or the connection breaks.
        """
        with self._asking:
            return self._ask(kind, fields or Fields(), limit_s, on_part)

    def put(self, content: Blob) -> bytes:
        """Send a blob, unless it is there, and return its digest; raises as `put_all` does."""
        return self.put_all([content])[0]

    def put_all(self, contents: Sequence[Blob]) -> list[bytes]:
        """Send those blobs that are not there, and return the digests of all.

        Raises `AgentError` if one does not fit, or the disk there is full, and `OSError` if a file
        cannot be read.
        """
        digests = [self._digest(content) for content in contents]
        unknown = [digest for digest in dict.fromkeys(digests) if digest not in self._there]
        for begin in range(0, len(unknown), MOST_ITEMS):
            some = unknown[begin : begin + MOST_ITEMS]
            answer = self.request(Kind.HAVE, Fields().u32(len(some)).raw(b"".join(some)))
            found = answer.raw(len(some))
            self._there.update(
                digest for digest, there in zip(some, found, strict=True) if there == 1
            )
        for digest, content in zip(digests, contents, strict=True):
            if digest not in self._there:
                self._send(digest, content)
        return digests

    def cancel(self) -> None:
        """Cancel another thread's request, if there is one."""
        if number := self._current:
            self._write(Frame(Kind.CANCEL, next(self._numbers), Fields().u32(number).payload))

    def close(self) -> None:
        """End the connection, and the agent with it."""
        self._over = self._over or _CLOSED
        with suppress(queue.Full):
            self._outgoing.put_nowait(None)
        self._stream.close()
        for thread in self._threads:
            thread.join(1.0)

    # -- blobs ------------------------------------------------------------------------------

    def _digest(self, content: Blob) -> bytes:
        if not isinstance(content, Path):
            return hashlib.sha256(content).digest()
        status = content.stat()
        key = content, status.st_mtime_ns, status.st_size
        if key not in self._digests:
            digest = hashlib.sha256()
            for piece in _pieces(content):
                digest.update(piece)
            self._digests[key] = digest.digest()
        return self._digests[key]

    def _send(self, digest: bytes, content: Blob) -> None:
        size = content.stat().st_size if isinstance(content, Path) else memoryview(content).nbytes

        def pieces() -> Iterator[bytes]:
            left = size
            for piece in _pieces(content):
                left -= len(piece)
                yield piece
            if left:
                raise AgentError(
                    f"Sending {content!s} to {self.transport.name} failed: it changed meanwhile.",
                    remedy="Run the command again.",
                )

        fields = Fields().raw(digest).u64(size)
        try:
            with self._asking:
                self._ask(Kind.PUT, fields, carrying_limit_s(size), parts=pieces())
        except AgentError as error:
            if error.code == Code.STORE:
                what = str(content) if isinstance(content, Path) else "data"
                error.message = (
                    f"Sending {what} ({bytes_text(size)}) to {self.transport.name} failed: "
                    f"{error.message}"
                )
                error.args = (error.message,)
            raise
        self._there.add(digest)

    # -- requests -----------------------------------------------------------------------------

    def _ask(
        self,
        kind: Kind,
        fields: Fields,
        limit_s: float,
        on_part: Callable[[FieldReader], object] | None = None,
        parts: Iterable[bytes] = (),
    ) -> FieldReader:
        """Send a request, with parts after it, and return the answer; the lock is held."""
        number = next(self._numbers)
        limit_ms = min(max(1, round(limit_s * 1e3)), MOST_LIMIT_MS)
        # Frames of a request that was given up.
        while not self._incoming.empty():
            self._incoming.get()
        self._current = number
        try:
            self._write(Frame(kind, number, fields.payload, limit_ms))
            for part in parts:
                self._write(Frame(kind | PART, number, part))
                if not self._incoming.empty():
                    # A refusal, after which the agent ignores further parts.
                    break
            return self._wait(kind, limit_ms * 1e-3 + _LATE_S, on_part)
        except KeyboardInterrupt:
            self._give_up(kind, number)
            raise
        except BaseException as error:
            if kind == Kind.PUT and not (isinstance(error, AgentError) and error.code):
                # The agent waits for the rest.
                self._end("an upload to it was not finished")
            raise
        finally:
            self._current = 0

    def _wait(
        self, kind: Kind, limit_s: float, on_part: Callable[[FieldReader], object] | None = None
    ) -> FieldReader:
        """Wait for the answer to the current request, and return it."""
        ends = time.monotonic() + limit_s
        while True:
            frame = self._next(ends)
            reader = FieldReader(frame.payload)
            if frame.kind == ERROR:
                raise self._error(kind, reader)
            if frame.kind == kind | ANSWER:
                return reader
            if frame.kind != kind | PART:
                raise FrameError(f"a frame of kind 0x{frame.kind:04x} answers a {kind.name}")
            if on_part is not None:
                on_part(reader)

    def _next(self, ends: float) -> Frame:
        """Wait for a frame of the current request; raise `AgentError` if none will come."""
        while True:
            with suppress(queue.Empty):
                frame = self._incoming.get(timeout=0.5 if self._over is None else 0.05)
                if frame is not None:
                    return frame
            now = time.monotonic()
            if self._over is not None:
                raise self._broken(self._over)
            if now - self._heard > 2 * SILENCE_S:
                raise self._broken(f"nothing was heard from it for {2 * SILENCE_S:.0f} s")
            if now > ends:
                raise self._broken("it answers, but not this request")

    def _give_up(self, kind: Kind, number: int) -> None:
        """Cancel a request that Ctrl-C interrupts, and wait for its end."""
        if kind == Kind.PUT:
            # The agent waits for the rest.
            self._end("an upload to it was interrupted")
            return
        try:
            self._write(Frame(Kind.CANCEL, next(self._numbers), Fields().u32(number).payload))
            self._wait(kind, _CANCEL_S)
        except AgentError as error:
            if not error.code:
                self._end("a request was interrupted, and did not end")
        except KeyboardInterrupt:
            self._end("a request was interrupted twice")

    def _end(self, reason: str) -> None:
        self._over = self._over or reason
        self._stream.close()

    def _write(self, frame: Frame) -> None:
        """Have a frame written after those before it."""
        content = frame.encoded()
        while True:
            if self._over is not None:
                raise self._broken(self._over)
            with suppress(queue.Full):
                self._outgoing.put(content, timeout=0.5)
                return
            if time.monotonic() - self._heard > 2 * SILENCE_S:
                raise self._broken(f"nothing was heard from it for {2 * SILENCE_S:.0f} s")

    # -- errors -------------------------------------------------------------------------------

    def _broken(self, what: str) -> AgentError:
        if what == _CLOSED:
            return AgentError(
                f"The connection to the agent on {self.transport.name} was closed.",
                remedy="Connect again.",
            )
        if self._over is None:
            self._end(what)
        reasons = (self.transport.lost(), what, self._stream.trouble())
        reason = "; ".join(filter(None, reasons)) or "it ended without a word"
        return AgentError(
            f"The connection to the agent on {self.transport.name} broke: {reason}.",
            remedy="Check the cable or the network, and run the command again.",
        )

    def _error(self, kind: Kind, reader: FieldReader) -> AgentError:
        code, detail = reader.u32(), reader.u32()
        message, remedy = reader.text(), reader.text()
        what = kind.name.lower().replace("_", " ")
        if code == Code.LOST and detail < 256:
            message = f"the session was ended by {signal_text(detail)}."
        if code == Code.MISSING:
            # Someone has emptied the agent's folder: send everything again.
            self._there.clear()
        if code in (Code.LOST, Code.TIMEOUT):
            message = f"The request '{what}' on {self.transport.name} failed: {message}"
            remedy = remedy or (
                "The kernel or the driver did this; compile with other options, or update the "
                "driver."
            )
        message, _, found = message.partition(" Remedy: ")
        return AgentError(message, remedy=remedy or found or None, code=code, detail=detail)

    # -- threads ------------------------------------------------------------------------------

    def _read_frames(self) -> None:
        reason = ""
        try:
            while (frame := read_frame(self._stream.read)) is not None:
                self._heard = time.monotonic()
                # Other frames answer a ping, or a request that was given up.
                while frame.request == self._current and self._over is None:
                    with suppress(queue.Full):
                        self._incoming.put(frame, timeout=0.5)
                        break
        except FrameError as error:
            reason = error.reason
        except (OSError, ValueError) as error:
            reason = str(error)
        if self._over is None:
            self._over = reason
        with suppress(queue.Full):
            self._incoming.put_nowait(None)

    def _write_frames(self) -> None:
        pinged = time.monotonic()
        try:
            while self._over is None:
                wait_s = pinged + SILENCE_S / 3 - time.monotonic()
                content: bytes | None = b""
                with suppress(queue.Empty):
                    content = self._outgoing.get(timeout=wait_s) if wait_s > 0 else b""
                if content is None:
                    return
                if not content:
                    # Also during uploads, when the agent says nothing else.
                    pinged = time.monotonic()
                    content = Frame(Kind.PING, next(self._numbers), b"").encoded()
                self.sent_bytes += len(content)
                self._stream.write(content)
        except (OSError, ValueError):
            # The reader reports the end; it may have more to say.
            for _ in range(20):
                if self._over is not None:
                    return
                time.sleep(0.05)
            self._over = ""


def _pieces(content: Blob) -> Iterator[bytes]:
    """Yield the parts of a blob that fit into a frame."""
    if isinstance(content, Path):
        with open(content, "rb") as file:
            while piece := file.read(PIECE_BYTES):
                yield piece
        return
    if memoryview(content).nbytes:
        view = memoryview(content).cast("B")
        for begin in range(0, len(view), PIECE_BYTES):
            yield bytes(view[begin : begin + PIECE_BYTES])
