"""A connection to an agent: requests and their answers."""

from __future__ import annotations

import hashlib
import itertools
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .._versions import __version__
from ..errors import AgentError
from ..ir.units import bytes_text
from .frames import (
    ANSWER,
    ERROR,
    PART,
    VERSION,
    Code,
    FieldReader,
    Fields,
    Frame,
    FrameError,
    Kind,
    read_frame,
)
from .transports import Stream, Transport

#: Time of silence after which the agent ends; this side sends three frames in it.
SILENCE_S = 30.0
#: Time limit of requests that do not say another.
LIMIT_S = 60.0
#: Bytes of a blob in one frame.
_PIECE_BYTES = 256 << 10
_DIGEST_BYTES = 32


class Connection:
    """A connection to an agent, for one caller at a time.

    Raises `AgentError` if there is none, it does not answer, or has another version.
    """

    def __init__(self, transport: Transport):
        self.transport = transport
        #: Bytes that were sent, for measurements.
        self.sent_bytes = 0
        self._numbers = itertools.count(1)
        self._writing = threading.Lock()
        self._closing = threading.Event()
        self._sent: dict[Path, tuple[tuple[int, int], bytes]] = {}
        self._stream: Stream = transport.start()
        try:
            hello = Fields().u32(VERSION, VERSION, 0, round(SILENCE_S * 1e3))
            answer = self._request(Kind.HELLO, hello.text(f"tvmflow {__version__}"), LIMIT_S)
            answer.u32(), answer.u32()
            self.process_id, self.limit_bytes = answer.u32(), answer.u64()
            #: Digest of the agent's sources, name of its host, and its folder.
            self.build, self.host_name, self.folder = (answer.text() for _ in range(3))
        except BaseException:
            self._stream.close()
            raise
        self._pinger = threading.Thread(target=self._keep_alive, daemon=True)
        self._pinger.start()

    def request(
        self,
        kind: Kind,
        fields: Fields | None = None,
        limit_s: float = LIMIT_S,
        on_part: Callable[[FieldReader], object] | None = None,
    ) -> FieldReader:
        """Send a request, pass each part of its answer to ``on_part``, and return the answer.

        Raises `AgentError` if the agent refuses it, the session ends during it, it takes longer
        than ``limit_s``, or the connection breaks.
        """
        try:
            return self._request(kind, fields or Fields(), limit_s, on_part)
        except FrameError as error:
            raise AgentError(
                f"The agent on {self.transport.name} was not understood: {error}.",
                remedy="Run the command again; if it happens again, report it.",
            ) from error

    def put(self, content: bytes | Path) -> bytes:
        """Send a blob, or the content of a file, unless it is there; return its digest.

        Raises `AgentError` if it does not fit, or the disk there is full; `OSError` if the file
        cannot be read.
        """
        if isinstance(content, Path):
            return self._put_file(content)
        digest = hashlib.sha256(content).digest()
        if not self._has(digest):
            self._send_blob(digest, len(content), iter_pieces(content))
        return digest

    def close(self) -> None:
        """End the connection, and the agent with it."""
        self._closing.set()
        self._stream.close()

    def _put_file(self, path: Path) -> bytes:
        status = path.stat()
        identity = status.st_mtime_ns, status.st_size
        known = self._sent.get(path)
        if known is not None and known[0] == identity:
            digest = known[1]
        else:
            with open(path, "rb") as file:
                digest = _digest_of(file)
            self._sent[path] = identity, digest
        if not self._has(digest):
            with open(path, "rb") as file:
                pieces = iter(lambda: file.read(_PIECE_BYTES), b"")
                self._send_blob(digest, status.st_size, pieces)
        return digest

    def _has(self, digest: bytes) -> bool:
        answer = self.request(Kind.HAVE, Fields().u32(1).raw(digest))
        return answer.raw(1) == b"\1"

    def _send_blob(self, digest: bytes, size: int, pieces: Iterator[bytes]) -> None:
        def send(number: int) -> None:
            for piece in pieces:
                self._write(Frame(Kind.PUT | PART, number, piece))

        # A refusal that comes early ends the writing: the agent reads on, and ignores the rest.
        try:
            fields = Fields().raw(digest).u64(size)
            self._request(Kind.PUT, fields, LIMIT_S, after=send)
        except AgentError as error:
            if error.code == Code.STORE:
                error.message = (
                    f"Sending {bytes_text(size)} to {self.transport.name} failed: {error.message}"
                )
            raise

    def _request(
        self,
        kind: Kind,
        fields: Fields,
        limit_s: float,
        on_part: Callable[[FieldReader], object] | None = None,
        after: Callable[[int], object] | None = None,
    ) -> FieldReader:
        number = next(self._numbers)
        self._write(Frame(kind, number, fields.payload, round(limit_s * 1e3)))
        if after is not None:
            after(number)
        with self._cancelling(number):
            while True:
                frame = self._read()
                if frame.request != number:
                    # An answer to a ping, or to a request that Ctrl-C has ended.
                    continue
                reader = FieldReader(frame.payload)
                if frame.kind == ERROR:
                    raise self._error(kind, reader)
                if frame.kind == kind | ANSWER:
                    return reader
                if frame.kind == kind | PART and on_part is not None:
                    on_part(reader)

    @contextmanager
    def _cancelling(self, number: int) -> Iterator[None]:
        """Cancel a request that Ctrl-C interrupts; its answer is dropped later."""
        try:
            yield
        except KeyboardInterrupt:
            with suppress(AgentError):
                self._write(Frame(Kind.CANCEL, next(self._numbers), Fields().u32(number).payload))
            raise

    def _read(self) -> Frame:
        try:
            frame = read_frame(self._stream.read)
        except FrameError as error:
            raise self._broken(str(error)) from error
        except (OSError, ValueError) as error:
            raise self._broken(str(error)) from error
        if frame is None:
            raise self._broken("")
        return frame

    def _write(self, frame: Frame) -> None:
        content = frame.encoded()
        try:
            with self._writing:
                self._stream.write(content)
                self.sent_bytes += len(content)
        except (OSError, ValueError) as error:
            raise self._broken("") from error

    def _broken(self, what: str) -> AgentError:
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
            with suppress(ValueError):
                message = f"The session was ended by {signal.Signals(detail).name}."
        if code in (Code.LOST, Code.TIMEOUT):
            message = f"The request '{what}' on {self.transport.name} failed: {message}"
            remedy = remedy or (
                "The kernel or the driver did this; compile with other options, or update the "
                "driver."
            )
        message, _, found = message.partition(" Remedy: ")
        return AgentError(message, remedy=remedy or found or None, code=code, detail=detail)

    def _keep_alive(self) -> None:
        while not self._closing.wait(SILENCE_S / 3):
            with suppress(AgentError):
                self._write(Frame(Kind.PING, next(self._numbers), b""))


def iter_pieces(content: bytes) -> Iterator[bytes]:
    """Yield parts of a blob that fit into a frame."""
    view = memoryview(content)
    for begin in range(0, len(view), _PIECE_BYTES):
        yield bytes(view[begin : begin + _PIECE_BYTES])


def _digest_of(file: object) -> bytes:
    digest = hashlib.sha256()
    while piece := file.read(1 << 20):  # type: ignore[attr-defined]
        digest.update(piece)
    return digest.digest()
