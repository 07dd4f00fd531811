"""Connections to an agent in a thread: what is sent, and what an error says."""

from __future__ import annotations

import hashlib
import os
import signal
import threading
import time

import pytest
from support.fake_agent import FakeAgent, answer, error
from support.farms import eventually

from tvmflow.agent import connection
from tvmflow.agent.connection import Connection
from tvmflow.agent.frames import PART, PIECE_BYTES, Code, Fields, Frame, Kind
from tvmflow.errors import AgentError

CONTENT = bytes(range(256)) * 3000


def on(kind: int, answers):
    """Return a handler that answers one kind of requests."""
    return lambda frame: answers(frame) if frame.kind == kind else None


def uploading(frame: Frame):
    """Answer an upload after its last part."""
    if frame.kind == Kind.PUT | PART and len(frame.payload) < PIECE_BYTES:
        return [answer(Frame(Kind.PUT, frame.request, b""), Fields().u32(0))]
    return None


def test_the_greeting_is_kept():
    agent = FakeAgent()
    opened = Connection(agent)
    assert (opened.process_id, opened.limit_bytes) == (4711, 1 << 30)
    assert (opened.build, opened.host_name, opened.folder) == (
        *("0123456789abcdef", "linux-x64"),
        "/folder",
    )
    opened.close()
    agent.thread.join(5)
    assert not agent.thread.is_alive()
    with pytest.raises(AgentError, match="was closed"):
        opened.request(Kind.SENSORS)


def test_blobs_are_sent_once_in_pieces(tmp_path):
    agent = FakeAgent(uploading)
    opened = Connection(agent)
    file = tmp_path / "file"
    file.write_bytes(CONTENT)
    digest = hashlib.sha256(CONTENT).digest()
    for content in (CONTENT, file, bytearray(CONTENT), memoryview(CONTENT)):
        assert opened.put(content) == digest
    assert agent.kinds() == [Kind.HELLO, Kind.HAVE, Kind.PUT, *[Kind.PUT | PART] * 3]
    begun, *parts = agent.requests[2:]
    assert begun.payload == digest + len(CONTENT).to_bytes(8, "little")
    assert b"".join(part.payload for part in parts) == CONTENT
    assert {part.request for part in parts} == {begun.request}
    opened.close()


def test_large_blobs_have_more_time(monkeypatch):
    monkeypatch.setattr(connection, "LIMIT_S", 0.0)
    monkeypatch.setattr(connection, "_LATE_S", 0.2)
    late = threading.Event()

    def slowly(frame):
        if answers := uploading(frame):
            late.wait(1.0)
        return answers

    opened = Connection(FakeAgent(slowly))
    assert opened.put(CONTENT)
    with pytest.raises(AgentError, match="it answers, but not this request"):
        opened.put(CONTENT[:100])
    late.set()
    opened.close()


def test_blobs_that_are_there_are_not_sent():
    agent = FakeAgent(on(Kind.HAVE, lambda frame: [answer(frame, Fields().raw(b"\1\1"))]))
    opened = Connection(agent)
    assert opened.put_all([b"one", b"two", b"one"]) == [
        hashlib.sha256(text).digest() for text in (b"one", b"two", b"one")
    ]
    assert agent.kinds() == [Kind.HELLO, Kind.HAVE]
    opened.close()


def test_a_refused_upload_names_the_file_and_the_connection_goes_on(tmp_path):
    file = tmp_path / "weights"
    file.write_bytes(CONTENT)

    def handle(frame):
        if frame.kind == Kind.PUT:
            return [error(frame, Code.STORE, "The disk is full.", "Free space.")]
        return [] if frame.kind == Kind.PUT | PART else None

    opened = Connection(FakeAgent(handle))
    with pytest.raises(
        AgentError, match=r"Sending .*weights \(.*\) to fake failed: The disk"
    ) as at:
        opened.put(file)
    assert (at.value.code, at.value.remedy) == (Code.STORE, "Free space.")
    assert opened.request(Kind.HAVE, Fields().u32(0)).rest() == b""
    opened.close()


def test_a_file_that_changes_while_it_is_sent(tmp_path, monkeypatch):
    file = tmp_path / "weights"
    file.write_bytes(CONTENT)
    opened = Connection(FakeAgent(uploading))
    opened.put_all([])
    pieces = connection._pieces
    monkeypatch.setattr(opened, "_digest", lambda content: bytes(32))
    monkeypatch.setattr(connection, "_pieces", lambda content: list(pieces(content))[:-1])
    with pytest.raises(AgentError, match="it changed meanwhile"):
        opened.put(file)
    with pytest.raises(AgentError, match="an upload to it was not finished"):
        opened.request(Kind.SENSORS)
    opened.close()


@pytest.mark.parametrize(
    ("code", "detail", "message", "expected"),
    [
        (Code.LOST, 11, "x", r"'self test' on fake failed: .* ended by signal 11 \(SIGSEGV\)"),
        (Code.LOST, 256 + 3, "The session ended with status 3.", "'self test' .* with status 3"),
        (Code.TIMEOUT, 0, "It took too long.", "'self test' on fake failed: It took too long"),
        (Code.DEVICE, 2**32 - 5, "clFinish failed.", r"^clFinish failed\."),
        (Code.LIBRARY, 1, "Wrong. Remedy: Right it.", r"^Wrong\.?"),
    ],
)
def test_errors_say_what_failed(code, detail, message, expected):
    handle = on(Kind.SELF_TEST, lambda frame: [error(frame, code, message, detail=detail)])
    opened = Connection(FakeAgent(handle))
    with pytest.raises(AgentError, match=expected) as failed:
        opened.request(Kind.SELF_TEST)
    assert (failed.value.code, failed.value.detail) == (code, detail)
    assert failed.value.remedy == ("Right it." if code == Code.LIBRARY else failed.value.remedy)
    opened.close()


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        (lambda _: [None], "ended without a word"),
        (lambda _: [b"Killed\n" * 9], "instead of a frame came b'Killed"),
        (lambda frame: [answer(frame).encoded()[:9], None], "instead of a frame came b'TVMA"),
        (lambda frame: [Frame(Kind.HELLO, frame.request, b"")], "kind 0x0001 answers a SENSORS"),
    ],
)
def test_a_connection_that_breaks(answers, reason):
    opened = Connection(FakeAgent(on(Kind.SENSORS, answers)))
    with pytest.raises(AgentError, match=reason) as broken:
        opened.request(Kind.SENSORS)
    assert broken.value.code == 0
    opened.close()


def test_the_transport_says_why_a_connection_broke():
    agent = FakeAgent(on(Kind.HELLO, lambda _: [None]))
    agent.said = "the phone X is no longer attached"
    with pytest.raises(AgentError, match="agent on fake broke: the phone X is no longer attached"):
        Connection(agent)


def test_a_refused_greeting_ends_the_connection():
    agent = FakeAgent(on(Kind.HELLO, lambda frame: [error(frame, Code.BUSY, "In use by 'x'.")]))
    with pytest.raises(AgentError, match="In use by 'x'"):
        Connection(agent)
    agent.thread.join(5)
    assert not agent.thread.is_alive()


def test_parts_arrive_in_order_and_late_answers_are_dropped():
    def handle(frame):
        late = Frame(Kind.TIME, frame.request + 1000, b"late")
        parts = [Frame(Kind.TIME | PART, frame.request, bytes([i])) for i in range(100)]
        return [late, *parts, answer(frame, Fields().u32(5))]

    opened = Connection(FakeAgent(on(Kind.TIME, handle)))
    found = []
    got = opened.request(Kind.TIME, on_part=lambda part: found.append(part.rest()[0]))
    assert got.u32() == 5
    assert found == list(range(100))
    opened.close()


def test_an_idle_connection_is_kept_alive(monkeypatch):
    monkeypatch.setattr(connection, "SILENCE_S", 0.06)
    agent = FakeAgent()
    opened = Connection(agent)
    eventually(lambda: sum(frame.kind == Kind.PING for frame in agent.requests) > 3)
    opened.close()


@pytest.mark.parametrize("answers", ["nothing", "pings"])
def test_an_agent_that_stops_to_answer(monkeypatch, answers):
    monkeypatch.setattr(connection, "SILENCE_S", 0.1 if answers == "nothing" else 30.0)
    monkeypatch.setattr(connection, "_LATE_S", 0.3 if answers == "pings" else 30.0)
    agent = FakeAgent()
    opened = Connection(agent)
    agent.handle = on(Kind.SENSORS if answers == "pings" else Kind.PING, lambda _: [])
    reason = {"nothing": "nothing was heard from it", "pings": "but not this request"}[answers]
    with pytest.raises(AgentError, match=reason):
        opened.request(Kind.FACTS if answers == "nothing" else Kind.SENSORS, limit_s=0.1)
    opened.close()


def test_ctrl_c_cancels_a_request_and_the_connection_goes_on():
    waiting = []

    def handle(frame):
        if frame.kind == Kind.TIME:
            waiting.append(frame)
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
            return []
        if frame.kind == Kind.CANCEL:
            assert frame.payload == waiting[0].request.to_bytes(4, "little")
            return [error(waiting[0], Code.CANCELLED, "Cancelled."), answer(frame)]
        return None

    agent = FakeAgent(handle)
    opened = Connection(agent)
    with pytest.raises(KeyboardInterrupt):
        opened.request(Kind.TIME)
    assert agent.kinds() == [Kind.HELLO, Kind.TIME, Kind.CANCEL]
    assert opened.request(Kind.HAVE, Fields().u32(0)).rest() == b""
    opened.close()


def test_ctrl_c_during_an_upload_ends_the_connection():
    def handle(frame):
        if frame.kind == Kind.PUT:
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
            time.sleep(0.3)
        return [] if frame.kind & ~PART == Kind.PUT else None

    opened = Connection(FakeAgent(handle))
    with pytest.raises(KeyboardInterrupt):
        opened.put(bytes(64 << 20))
    with pytest.raises(AgentError, match="an upload to it was interrupted"):
        opened.request(Kind.SENSORS)
    opened.close()


def test_requests_of_threads_wait_for_each_other():
    def handle(frame):
        time.sleep(0.01)
        return [Frame(Kind.RUN | PART, frame.request, frame.payload), answer(frame)]

    opened = Connection(FakeAgent(on(Kind.RUN, handle)))
    found = {}

    def ask(number):
        parts = []
        opened.request(
            Kind.RUN, Fields().u32(number), on_part=lambda part: parts.append(part.u32())
        )
        found[number] = parts

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert found == {number: [number] for number in range(8)}
    opened.close()


def test_another_thread_cancels():
    waiting = []

    def handle(frame):
        if frame.kind == Kind.LAUNCH:
            waiting.append(frame)
            return []
        if frame.kind == Kind.CANCEL:
            return [answer(frame), error(waiting[0], Code.CANCELLED, "Cancelled.")]
        return None

    opened = Connection(FakeAgent(handle))
    opened.cancel()  # nothing is in progress
    threading.Timer(0.1, opened.cancel).start()
    with pytest.raises(AgentError, match="Cancelled") as cancelled:
        opened.request(Kind.LAUNCH)
    assert cancelled.value.code == Code.CANCELLED
    opened.close()
