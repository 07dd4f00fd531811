"""The agent's protocol, byte by byte, under the sanitizers (docs/agent-protocol.md)."""

from __future__ import annotations

import errno
import hashlib
import hmac
import itertools
import json
import os
import signal
import struct
import subprocess
import time
import zlib

import pytest
from support import raw_agent as raw
from support.mock_library import build_mock
from support.raw_agent import Agent, Listener, sha256, text, u32, u64

MB = 1 << 20
SECRET = b"a secret of this test"
SOURCE = b"__kernel void copy(__global const float* x, __global float* y) {}"


@pytest.fixture(scope="session")
def program():
    """Return the agent with the sanitizers."""
    return raw.build_agent()


@pytest.fixture(scope="session")
def driver():
    """Return the fake driver with faults."""
    return raw.build_driver(*raw.SANITIZERS)


@pytest.fixture
def folder(tmp_path):
    """Return the agent's folder, which it makes."""
    return tmp_path / "agent"


@pytest.fixture
def start(program, driver, folder, tmp_path):
    """Return a function that starts an agent; all end with the test."""
    started = []

    def agent(*options, at=folder, greets=True, fault="", **env):
        env = {"TVMFLOW_OPENCL_LIBRARY": driver, "TVMFLOW_TEST_FAULT": fault, **env}
        log = tmp_path / f"agent-{len(started)}.log"
        started.append(Agent(program, at, *options, log=log, **env))
        if greets:
            assert started[-1].greet().kind == raw.HELLO | raw.ANSWER
        return started[-1]

    yield agent
    for each in started:
        each.stop()


@pytest.fixture
def agent(start):
    """Return an agent that has been greeted."""
    return start()


def allocate(agent, count=64):
    """Return a request for a buffer's memory."""
    return agent.request(raw.ALLOCATE, u32(0) + text("") + u32(0) + u64(count) + u32(0, 0, 0, 0))


def build(agent):
    """Return the handle of a program with the kernel ``copy``."""
    assert agent.put(SOURCE).u32 in (0, 1)
    return agent.request(raw.BUILD, u32(0) + text("") + text("") + sha256(SOURCE)).u32


def launch(program, x, y, rounds=0, recorded=0, times=1, repeats=1):
    """Return the fields of ``LAUNCH`` for so many launches of the kernel ``copy``."""
    sizes = u32(1, 16, 1, 1, 0, 0, 0)
    one = u32(program) + text("copy") + sizes + u32(2, 0, x, 0, y)
    return u32(1, times) + one * times + u32(recorded, 0, repeats, rounds)


def is_over(client):
    """Return whether the connection has ended."""
    return client.receive() is None


# -- frames and versions ---------------------------------------------------------------------------


def test_the_greeting_has_the_agents_facts(start, folder):
    agent = start("--limit-mb", 7, greets=False)
    payload = agent.greet(name="a host").payload
    assert struct.unpack_from("<IIIQ", payload) == (1, 0, agent.process.pid, 7 * MB)
    assert payload.endswith(text(str(folder)))
    assert (folder / "lock").read_text() == "a host"
    assert agent.end() == 0


@pytest.mark.parametrize(
    ("lowest", "highest", "good"), [(0, 9, 1), (1, 1, 1), (2, 9, 0), (0, 0, 0)]
)
def test_versions_must_overlap(start, lowest, highest, good):
    agent = start(greets=False)
    answer = agent.greet(lowest=lowest, highest=highest)
    if good:
        assert answer.u32 == 1
    else:
        code, detail, message = answer.error
        assert (code, detail) == (raw.VERSIONS, 1)
        assert f"{lowest} to {highest}" in message
        assert is_over(agent)


@pytest.mark.parametrize("kind", [raw.PING, raw.PUT, raw.FACTS, 0, 0x7FFF])
def test_the_first_request_is_a_greeting(start, kind):
    agent = start(greets=False)
    code, _, message = agent.request(kind).error
    assert (code, "not HELLO" in message) == (raw.PROTOCOL, True)
    assert is_over(agent)
    assert agent.end() == 0


PING = raw.frame(raw.PING, 2)
#: The same with something in the bytes that are always 0, and the right checksum.
RESERVED = PING[:6] + b"\1" + PING[7:20]
RESERVED += u32(zlib.crc32(RESERVED))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"TVMB" + PING[4:], "TVMA"),
        (PING[:4] + b"\1" + PING[5:], "checksum"),
        (PING[:6] + b"\1" + PING[7:], "checksum"),
        (RESERVED, "bytes 6 and 7"),
        (PING[:-1] + bytes([PING[-1] ^ 1]), "checksum"),
        (PING[:16] + u32(4 * MB + 1) + PING[20:], "longer than the limit"),
        (raw.frame(raw.SENSORS, 2, b"1234")[:-1] + b"5", "checksum"),
        (raw.frame(raw.HELLO, 2, raw.hello()), "no such kind"),
        (raw.frame(15, 2), "no such kind"),
        (raw.frame(0xFFFF, 2), "no such kind"),
        (raw.frame(raw.PUT | raw.PART, 2), "no upload"),
        (raw.frame(raw.PUT, 2, bytes(39)), "fields"),
        (raw.frame(raw.PUT, 2, bytes(41)), "fields"),
        (raw.frame(raw.HAVE, 2, u32(2) + bytes(63)), "fields"),
        (raw.frame(raw.HAVE, 2, u32(4097) + bytes(4097 * 32)), "fields"),
        (raw.frame(raw.HAVE, 2), "fields"),
        (raw.frame(raw.CANCEL, 2), "fields"),
        (raw.frame(raw.FACTS, 2, b"x"), "fields"),
        (raw.frame(raw.FREE, 2, u32(2, 1)), "fields"),
        (raw.frame(99, 2), "kind 99"),
    ],
    ids=itertools.count(),
)
def test_damaged_requests_end_the_connection(agent, content, reason):
    agent.raw(content)
    code, _, message = agent.receive().error
    assert code == raw.PROTOCOL
    assert reason in message
    assert is_over(agent)
    assert agent.process.wait(5) == 0


@pytest.mark.parametrize("silence_ms", [0, 999, 600_001, 0xFFFFFFFF])
def test_times_of_silence_have_limits(start, silence_ms):
    assert start(greets=False).greet(silence_ms=silence_ms).error[0] == raw.PROTOCOL


@pytest.mark.parametrize("name", [b"a\0b", bytes([65]) * 256])
def test_names_of_hosts_have_limits(start, name):
    agent = start(greets=False)
    assert agent.request(raw.HELLO, u32(1, 1, 0, 1000) + text(name)).error[0] == raw.PROTOCOL


def test_frames_arrive_in_any_pieces(agent):
    for byte in raw.frame(raw.PING, 7) + raw.frame(raw.PING, 8):
        agent.raw(bytes([byte]))
    agent.raw(raw.frame(raw.PING, 9) * 3)
    answers = [agent.receive() for _ in range(5)]
    assert [answer.request for answer in answers] == [7, 8, 9, 9, 9]
    times = [struct.unpack("<Q", answer.payload)[0] for answer in answers]
    assert times == sorted(times)
    assert times[0] > 0


def test_two_hosts_at_one_folder(start, folder, tmp_path):
    first = start(greets=False)
    assert first.greet(name="the first host").u32 == 1
    second = start(greets=False)
    code, _, message = second.greet(name="the second host").error
    assert code == raw.BUSY
    assert "the first host" in message
    assert is_over(second)
    # Neither the refusal nor its end disturbs the first one.
    assert first.put(b"content").u32 == 0
    assert start(at=tmp_path / "other").has(b"content") == [0]
    first.end()
    assert start().has(b"content") == [1]


def test_folders_that_cannot_be_used(program, tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / ("x" * 900)):
        done = subprocess.run(
            [program, "--folder", path],
            input=b"",
            capture_output=True,
            env=raw.environment(),
            check=False,
        )
        assert done.returncode == 2
        assert b"cannot be used" in done.stderr


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--folder",),
        ("--folder", "f", "--limit-mb", "0"),
        ("--folder", "f", "--limit-mb", "x"),
        ("--folder", "f", "--limit-mb", "-1"),
        ("--folder", "f", "--limit-mb", "1048577"),
        ("--folder", "f", "--what", "x"),
        ("--folder", "f", "--secret-file", "x"),
        ("--folder", "f", "--listen", "127.0.0.1"),
        ("--folder", "f", "--listen", "127.0.0.1:"),
        ("--folder", "f", "--listen", "127.0.0.1:65536"),
        ("--folder", "f", "--listen", "127.0.0.1:5x"),
        ("--folder", "f", "--listen", "localhost:0"),
        ("--folder", "f", "--listen", "1" * 40 + ":0"),
        ("--folder", "f", "--listen", "0.0.0.0:0"),
        ("--folder", "f", "--listen", "127.0.0.1:0", "--secret-file", "missing"),
    ],
)
def test_options_that_are_wrong(program, tmp_path, options):
    command = [program, *options]
    done = subprocess.run(
        command, cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=5
    )
    assert done.returncode == 2
    assert done.stderr.startswith(b"tvmflow agent: ")


# -- blobs -----------------------------------------------------------------------------------------


def test_blobs_are_kept_between_connections(start):
    agent = start()
    long = os.urandom(3 * MB + 5)
    assert agent.has(b"a", long, b"") == [0, 0, 0]
    assert agent.request(raw.HAVE, u32(0)).payload == b""
    assert [agent.put(content).u32 for content in (b"a", long, b"", b"a")] == [0, 0, 0, 1]
    agent.end()
    agent = start()
    assert agent.has(b"a", b"b", long, b"") == [1, 0, 1, 1]
    assert agent.put(long).u32 == 1
    assert (agent.folder / "blobs" / hashlib.sha256(long).hexdigest()).read_bytes() == long


@pytest.mark.parametrize(
    ("sent", "announced"),
    [([b"other"], 5), ([b"contents"], 7), ([b"con", b"tentt"], 7), ([b""], 0), ([b"x" * MB], 3)],
)
def test_content_must_be_what_was_announced(agent, sent, announced):
    number = agent.send(raw.PUT, sha256(b"content") + u64(announced))
    for part in sent:
        agent.send(raw.PUT | raw.PART, part, number)
    code, detail, message = agent.answer(number).error
    assert (code, detail) == (raw.STORE, errno.EBADMSG)
    assert "not the announced" in message
    # Parts that are still on their way are ignored.
    agent.send(raw.PUT | raw.PART, b"more", number)
    assert agent.has(b"content") == [0]
    assert not list((agent.folder / "work").iterdir())
    assert agent.put(b"content").u32 == 0


def test_parts_after_the_end_of_an_upload_are_refused(agent):
    number = agent.send(raw.PUT, sha256(b"content") + u64(7))
    agent.send(raw.PUT | raw.PART, b"content", number)
    assert agent.answer(number).u32 == 0
    agent.send(raw.PUT | raw.PART, b"more", number)
    assert agent.receive().error[0] == raw.PROTOCOL
    assert is_over(agent)


def test_parts_of_a_blob_that_is_there_are_ignored(agent):
    agent.put(b"content")
    number = agent.send(raw.PUT, sha256(b"content") + u64(7))
    for part in (b"con", b"tent"):
        agent.send(raw.PUT | raw.PART, part, number)
    assert agent.answer(number).u32 == 1
    assert agent.has(b"content") == [1]


def test_a_second_upload_during_one_is_refused(agent):
    agent.send(raw.PUT, sha256(b"content") + u64(7))
    assert agent.request(raw.PUT, sha256(b"other") + u64(5)).error[0] == raw.PROTOCOL
    assert is_over(agent)
    agent.process.wait(5)
    assert not list((agent.folder / "work").iterdir())


def test_requests_between_the_parts_of_an_upload(agent):
    number = agent.send(raw.PUT, sha256(b"content") + u64(7))
    agent.send(raw.PUT | raw.PART, b"con", number)
    assert allocate(agent).u32 == 1
    assert agent.request(raw.RESET).kind == raw.RESET | raw.ANSWER
    assert agent.request(raw.PING).kind == raw.PING | raw.ANSWER
    agent.send(raw.PUT | raw.PART, b"tent", number)
    assert agent.answer(number).u32 == 0


@pytest.mark.parametrize("count", [MB + 1, 1 << 40, (1 << 64) - 1])
def test_blobs_larger_than_the_limit_are_refused(start, count):
    agent = start("--limit-mb", 1)
    agent.put(b"old")
    code, detail, message = agent.request(raw.PUT, sha256(b"x") + u64(count)).error
    assert (code, detail) == (raw.STORE, errno.EFBIG)
    assert "1 MB" in message
    assert agent.has(b"old") == [1]


def test_the_least_recently_used_make_room(start, folder):
    blobs = [bytes([number]) * (300 << 10) for number in range(5)]
    agent = start("--limit-mb", 1)
    for number in (0, 1, 2):
        agent.put(blobs[number])
        at = 1_000_000 + number
        os.utime(folder / "blobs" / hashlib.sha256(blobs[number]).hexdigest(), (at, at))
    agent.end()
    agent = start("--limit-mb", 1)
    # The oldest file is used now, so that the second one goes.
    assert agent.has(blobs[0]) == [1]
    assert agent.put(blobs[3]).u32 == 0
    assert agent.has(*blobs) == [1, 0, 1, 1, 0]
    # All that are left were named in this connection.
    assert agent.put(blobs[4]).error[:2] == (raw.STORE, errno.EFBIG)
    assert agent.has(*blobs) == [1, 0, 1, 1, 0]
    agent.end()
    agent = start("--limit-mb", 1)
    assert agent.put(blobs[4]).u32 == 0
    assert sum(agent.has(*blobs)) == 3


def test_a_full_disk(start, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(disk)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"A small disk cannot be mounted: {mounted.stderr.strip()}")
    try:
        agent = start(at=disk / "agent", greets=False)
        assert agent.greet().u32 == 1
        code, detail, message = agent.put(bytes(MB)).error
        assert (code, detail) == (raw.STORE, errno.ENOSPC)
        assert "No space" in message
        # What was written of it is gone.
        assert agent.put(bytes(100 << 10)).u32 == 0
        agent.end()
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_blobs_that_are_links_are_not_used(agent, tmp_path):
    (tmp_path / "secret").write_text("content")
    path = agent.folder / "blobs" / hashlib.sha256(b"content").hexdigest()
    path.symlink_to(tmp_path / "secret")
    assert agent.has(b"content") == [0]
    assert agent.put(b"content").u32 == 0
    assert not path.is_symlink()


# -- the session -----------------------------------------------------------------------------------


def test_objects_have_handles(agent):
    program, x, y = build(agent), allocate(agent).u32, allocate(agent).u32
    assert (program, x, y) == (1, 2, 3)
    assert agent.request(raw.FILL, u32(x) + text(b"abcd")).kind == raw.FILL | raw.ANSWER
    for rounds in (0, 2):
        assert agent.request(raw.LAUNCH, launch(program, x, y, rounds)).payload == b""
    agent.send(raw.READ, u32(y, 0, 0, 0, 0, 0, 0) + u64(0, 64))
    part = agent.receive()
    assert (part.kind, part.payload) == (raw.READ | raw.PART, u64(0) + b"abcd" * 16)
    assert agent.receive().payload == b""
    assert agent.request(raw.FREE, u32(3, 3, 1, 2)).payload == b""
    assert agent.request(raw.FREE, u32(2, 2, 77)).error[0] == raw.MISSING
    assert allocate(agent).u32 == 4


@pytest.mark.parametrize("extension", ["cl_khr_command_buffer", "cl_qcom_recordable_queues"])
def test_recorded_launches_have_the_arguments_of_their_request(start, extension):
    """A recording of Qualcomm's takes two launches here."""
    agent = start(FAKE_OPENCL_EXTENSIONS=extension, FAKE_OPENCL_RECORDABLE=2)
    program, x, y = build(agent), allocate(agent).u32, allocate(agent).u32
    for count in (1, 5):
        for content in (b"abcd", b"efgh"):
            assert agent.request(raw.FILL, u32(x) + text(content)).kind == raw.FILL | raw.ANSWER
            fields = launch(program, x, y, 3, recorded=1, times=count, repeats=2)
            number = agent.send(raw.LAUNCH, fields)
            part = agent.receive()
            assert part.kind == raw.LAUNCH | raw.PART
            rounds = list(struct.iter_unpack("<3Q", part.payload))
            assert len(rounds) == 3
            assert all(kernels == span == 0 < wall for kernels, span, wall in rounds)
            assert agent.answer(number).payload == b""
            agent.send(raw.READ, u32(y, 0, 0, 0, 0, 0, 0) + u64(0, 64))
            assert agent.receive().payload == u64(0) + content * 16
            assert agent.receive().payload == b""
    # The recordings are gone, and so are the objects that they use.
    assert agent.request(raw.FREE, u32(3, program, x, y)).payload == b""


def test_a_device_that_records_no_launches_says_so(agent):
    program, x, y = build(agent), allocate(agent).u32, allocate(agent).u32
    code, _, message = agent.request(raw.LAUNCH, launch(program, x, y, recorded=1)).error
    assert code == raw.ARGUMENT
    assert "'Fake GPU' has neither" in message
    # Other bits are ignored, and the session goes on.
    fields = launch(program, x, y, recorded=0xFFFFFFFE)
    assert agent.request(raw.LAUNCH, fields).kind == raw.LAUNCH | raw.ANSWER


def test_request_number_zero_is_like_others(agent):
    program, x, y = build(agent), allocate(agent).u32, allocate(agent).u32
    agent.raw(raw.frame(raw.LAUNCH, 0, launch(program, x, y, 2)))
    assert agent.answer(0).kind == raw.LAUNCH | raw.ANSWER


@pytest.mark.parametrize(
    ("begin", "count", "good"),
    [
        (0, 64, 1),
        (36, 64, 1),
        (37, 64, 0),
        (0, 101, 0),
        (100, 1, 0),
        (101, 1, 0),
        ((1 << 64) - 1, 2, 0),
    ],
)
def test_written_bytes_lie_in_their_blob(agent, begin, count, good):
    content, memory = os.urandom(100), allocate(agent, 256).u32
    agent.put(content)
    fields = u32(memory, 0, 0, 0, 0, 0, 0) + u64(0) + sha256(content) + u64(begin, count)
    answer = agent.request(raw.WRITE, fields)
    if good:
        agent.send(raw.READ, u32(memory, 0, 0, 0, 0, 0, 0) + u64(0, count))
        assert agent.receive().payload == u64(0) + content[begin : begin + count]
    else:
        code, _, message = answer.error
        assert (code, "no part of a blob" in message) == (raw.ARGUMENT, True)


@pytest.mark.parametrize(
    ("offset", "count", "good"),
    [(0, 64, 1), (63, 1, 1), (64, 1, 0), (1, 64, 0), (0, 0, 0), (1, (1 << 64) - 1, 0)],
)
def test_parts_lie_in_their_memory(agent, offset, count, good):
    memory = allocate(agent, 64).u32
    answer = agent.request(raw.READ, u32(memory, 0, 0, 0, 0, 0, 0) + u64(offset, count))
    assert answer.kind == raw.READ | raw.ANSWER if good else answer.error[0] == raw.ARGUMENT


@pytest.mark.parametrize(
    ("size", "good"),
    [
        ((8, 1, 1), 1),
        ((9, 1, 1), 0),
        ((1, 4, 2), 1),
        ((1, 5, 1), 0),
        ((1, 1, 3), 0),
        ((0, 1, 1), 0),
        ((0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF), 0),
    ],
)
def test_images_fit_the_device(start, size, good):
    limits = {"WIDTH": 8, "HEIGHT": 4, "LAYERS": 2}
    agent = start(**{f"FAKE_OPENCL_IMAGE_{name}": limit for name, limit in limits.items()})
    fields = u32(0) + text("") + u32(1) + u64(0) + u32(0x10DE, *size)
    answer = agent.request(raw.ALLOCATE, fields)
    assert answer.u32 == 1 if good else answer.error[0] == raw.ARGUMENT


@pytest.mark.parametrize(
    ("fault", "code", "detail"),
    [
        ("hang clFinish", raw.TIMEOUT, 0),
        ("crash clFinish", raw.LOST, signal.SIGBUS),
        ("exit clFinish", raw.LOST, 256 + 3),
    ],
)
def test_faults_of_drivers_cost_the_session_only(start, fault, code, detail):
    agent = start(fault=fault)
    program, x, y = build(agent), allocate(agent).u32, allocate(agent).u32
    (session,) = agent.sessions
    began = time.monotonic()
    found = agent.request(raw.LAUNCH, launch(program, x, y), limit_ms=200).error
    assert found[:2] == (code, detail), found
    assert time.monotonic() - began < 4
    raw.wait_for_end(session)
    assert agent.request(raw.FREE, u32(1, x)).error[0] == raw.MISSING
    assert allocate(agent).u32 > y
    assert len(agent.sessions) == 1
    # The blobs are still there.
    assert agent.has(SOURCE) == [1]


@pytest.mark.parametrize("stalls", ["sending", "receiving"])
def test_a_host_that_stalls_does_not_keep_a_hanging_session(start, stalls):
    agent = start(fault="hang clFinish")
    program, x, y = build(agent), allocate(agent).u32, allocate(agent).u32
    number = agent.send(raw.LAUNCH, launch(program, x, y), limit_ms=200)
    sessions = agent.sessions
    frame = raw.frame(raw.PING, 77)
    # A pipe holds 64 KB: not all of the answers, but the requests after those.
    agent.raw(frame[:-1] if stalls == "sending" else frame * 3000)
    raw.wait_for_end(*sessions)
    agent.raw(frame[-1:] if stalls == "sending" else b"")
    assert agent.answer(number).error[0] == raw.TIMEOUT
    assert allocate(agent).u32 > y


def test_only_short_requests_are_accepted_during_one(start):
    agent = start(fault="hang clFinish")
    program, x, y = build(agent), allocate(agent).u32, allocate(agent).u32
    number = agent.send(raw.LAUNCH, launch(program, x, y), limit_ms=700)
    code, _, message = agent.request(raw.FACTS, u32(0)).error
    assert (code, f"Request {number}" in message) == (raw.BUSY, True)
    for kind in (raw.PING, raw.SENSORS):
        assert agent.request(kind).kind == kind | raw.ANSWER
    assert agent.put(b"content").u32 == 0
    assert agent.request(raw.CANCEL, u32(number + 1)).payload == b""
    assert agent.answer(number).error[0] == raw.TIMEOUT


def test_a_cancelled_request_ends(start):
    agent = start(FAKE_OPENCL_STUB=1)
    program, x, y = build(agent), allocate(agent).u32, allocate(agent).u32
    number = agent.send(raw.LAUNCH, launch(program, x, y, 1_000_000))
    cancelled = agent.send(raw.CANCEL, u32(number))
    answers = {}
    while len(answers) < 2:
        found = agent.receive()
        if found.kind & raw.ANSWER:
            answers[found.request] = found
    assert answers[cancelled].payload == b""
    assert answers[number].error[0] == raw.CANCELLED
    # The session goes on.
    assert agent.request(raw.FREE, u32(1, x)).payload == b""
    # The end of a request that is over is no error.
    assert agent.request(raw.CANCEL, u32(number)).payload == b""
    assert agent.request(raw.LAUNCH, launch(program, y, y, 2)).kind == raw.LAUNCH | raw.ANSWER


def test_a_cancelled_request_that_hangs_ends_after_its_limit(start):
    agent = start(fault="hang clFinish")
    program, x, y = build(agent), allocate(agent).u32, allocate(agent).u32
    number = agent.send(raw.LAUNCH, launch(program, x, y), limit_ms=500)
    assert agent.request(raw.CANCEL, u32(number)).payload == b""
    assert agent.answer(number).error[0] == raw.CANCELLED


@pytest.mark.parametrize("fault", ["", "hang clFinish"])
def test_reset_ends_the_session(start, fault):
    agent = start(fault=fault)
    program, x, y = build(agent), allocate(agent).u32, allocate(agent).u32
    (session,) = agent.sessions
    number = agent.send(raw.LAUNCH, launch(program, x, y)) if fault else 0
    reset = agent.send(raw.RESET)
    if fault:
        assert agent.answer(number).error[0] == raw.CANCELLED
    assert agent.answer(reset).payload == b""
    raw.wait_for_end(session)
    assert agent.sessions == []
    assert agent.request(raw.RESET).payload == b""
    assert agent.request(raw.FREE, u32(1, x)).error[0] == raw.MISSING
    assert allocate(agent).u32 > y


def test_sessions_that_die_between_requests(agent):
    x = allocate(agent).u32
    (session,) = agent.sessions
    os.kill(session, signal.SIGKILL)
    raw.wait_for_end(session)
    # The agent may notice at once, or as it passes the request on.
    assert agent.request(raw.FREE, u32(1, x)).error[0] in (raw.MISSING, raw.LOST)
    assert allocate(agent).u32 > x


@pytest.mark.parametrize("limit_ms", [3_600_001, 0xFFFFFFFF])
def test_time_limits_have_a_limit(agent, limit_ms):
    assert agent.request(raw.FACTS, u32(0), limit_ms=limit_ms).error[0] == raw.ARGUMENT
    assert agent.request(raw.FACTS, u32(0), limit_ms=3_600_000).kind == raw.FACTS | raw.ANSWER


# -- libraries -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outputs", "code"),
    [
        ([MB << 10], raw.LIBRARY),
        ([(MB << 10) + 1], raw.ARGUMENT),
        ([512 * MB] * 2, raw.LIBRARY),
        ([512 * MB, 512 * MB, 1], raw.ARGUMENT),
        ([(1 << 64) - 1], raw.ARGUMENT),
    ],
)
def test_outputs_of_a_run_have_a_limit_in_all(agent, tmp_path, outputs, code):
    """Within it, the library refuses the size that is not its own."""
    library = build_mock(tmp_path / "libmock.so").read_bytes()
    agent.put(library)
    fields = text("lib.so") + u32(1) + text("") + sha256(library) + u32(0, 0, 0, 0, 0)
    handle = agent.request(raw.OPEN, fields + text("") + u32(0)).u32
    wanted = b"".join(u32(0, 0) + u64(count) for count in outputs)
    refused = agent.request(raw.RUN, u32(handle, 0, 0, len(outputs)) + wanted).error
    assert refused[0] == code, refused
    assert code == raw.LIBRARY or "1 GiB in all" in refused[2]


# -- ends ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hangs", [False, True])
@pytest.mark.parametrize("how", ["closed", "killed"])
def test_no_process_is_left(start, how, hangs):
    agent = start(fault="hang clFinish")
    program, x, y = build(agent), allocate(agent).u32, allocate(agent).u32
    if hangs:
        agent.send(raw.LAUNCH, launch(program, x, y))
    sessions = agent.sessions
    assert len(sessions) == 1
    if how == "closed":
        assert agent.end() == 0
        assert not list((agent.folder / "work").iterdir())
    else:
        agent.process.kill()
        agent.process.wait()
    raw.wait_for_end(*sessions)


def test_a_silent_host_counts_as_gone(start):
    agent = start(greets=False)
    began = time.monotonic()
    agent.greet(silence_ms=1000)
    assert allocate(agent).u32 == 1
    sessions = agent.sessions
    time.sleep(0.6)
    assert agent.request(raw.PING).kind == raw.PING | raw.ANSWER
    assert is_over(agent)
    assert 1.5 < time.monotonic() - began < 4
    assert agent.process.wait(5) == 0
    raw.wait_for_end(*sessions)


def test_a_host_that_stalls_within_a_frame_counts_as_gone(start):
    agent = start(greets=False)
    agent.greet(silence_ms=1000)
    agent.raw(raw.frame(raw.HAVE, 5, u32(0))[:-1])
    assert agent.receive().error[0] == raw.PROTOCOL
    assert is_over(agent)


def test_a_host_that_reads_nothing_counts_as_gone(start):
    agent = start(greets=False)
    agent.greet(silence_ms=1000)
    memory = allocate(agent, 8 * MB).u32
    sessions = agent.sessions
    # More than a pipe holds.
    agent.send(raw.READ, u32(memory, 0, 0, 0, 0, 0, 0) + u64(0, 8 * MB))
    assert agent.process.wait(4) == 0
    raw.wait_for_end(*sessions)


# -- facts and sensors of a made-up phone ----------------------------------------------------------

CPUINFO = """Processor : AArch64 Processor rev 0
processor\t: 0
Features\t: fp asimd
CPU implementer\t: 0x41
CPU part\t: 0xd05

processor\t: 2
CPU implementer\t: 0x51
CPU part\t: 0x804

Hardware\t: Made up
"""
CPU = "sys/devices/system/cpu/cpu"
ZONE = "sys/class/thermal/thermal_zone"
COOLING = "sys/class/thermal/cooling_device"
POWER = "sys/class/power_supply"
PHONE = {
    "proc/cpuinfo": CPUINFO,
    "proc/version": "Linux version 5.10.1-made-up (someone@somewhere) #1 SMP",
    "proc/device-tree/model": 'Board "one"\x01\0',
    CPU + "0/cpufreq/cpuinfo_min_freq": "300000\n",
    CPU + "0/cpufreq/cpuinfo_max_freq": "1804800\n",
    CPU + "0/cpufreq/scaling_cur_freq": "1804800\n",
    CPU + "1/online": "0\n",
    CPU + "2/cpufreq/cpuinfo_max_freq": "2841600\n",
    CPU + "2/cpufreq/scaling_cur_freq": "12345678901\n",
    ZONE + "0/type": "cpu-0\n",
    ZONE + "0/temp": "41500\n",
    ZONE + "1/type": "cpu-0\n",
    ZONE + "1/temp": "39\n",
    ZONE + "2/type": "off\n",
    ZONE + "2/temp": "-273000\n",
    ZONE + "3/type": "broken\n",
    ZONE + "3/temp": "nan\n",
    ZONE + "4/type": "worse\n",
    ZONE + "4/temp": "<unsupported>\n",
    ZONE + "5/temp": "40000\n",
    ZONE + "6/type": b"\xff\xfe\xed\xa0\x80 \xc3\xa9\n",
    ZONE + "6/temp": "1000.5\n",
    COOLING + "0/type": "thermal-cpufreq-0\n",
    COOLING + "0/cur_state": "3\n",
    COOLING + "1/type": "thermal-gpu\n",
    COOLING + "1/cur_state": "0\n",
    COOLING + "2/type": "pwm-fan\n",
    COOLING + "2/cur_state": "1\n",
    "sys/class/kgsl/kgsl-3d0/gpuclk": "587000000\n",
    POWER + "/mouse/type": "Battery\n",
    POWER + "/mouse/scope": "Device\n",
    POWER + "/mouse/capacity": "3\n",
    POWER + "/usb/type": "USB\n",
    POWER + "/battery/type": "Battery\n",
    POWER + "/battery/capacity": "87\n",
    POWER + "/battery/status": "Discharging\n",
    POWER + "/battery/temp": "312\n",
}


@pytest.fixture
def phone(tmp_path, start):
    """Return a function that starts an agent on a phone with such files."""

    def made(files):
        for name, content in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        folders = {"SYS": tmp_path / "sys", "PROC": tmp_path / "proc"}
        return start(**{f"TVMFLOW_AGENT_{name}": path for name, path in folders.items()})

    return made


def json_of(answer):
    """Return the JSON of an answer's text, which must be strict."""

    def refuse(word):
        raise AssertionError(f"{word} is no JSON.")

    (length,) = struct.unpack_from("<I", answer.payload)
    assert len(answer.payload) == 4 + length
    return json.loads(answer.payload[4:], parse_constant=refuse)


def test_sensors_of_a_phone(phone):
    sensors = json_of(phone(PHONE).request(raw.SENSORS))
    assert sensors.pop("time_ns") > 0
    assert sensors.pop("slept_ns") >= 0
    assert sensors == {
        "temperatures": {"cpu-0 (0)": 41.5, "cpu-0 (1)": 39, "????? é (6)": 1.0005},
        "throttled": ["thermal-cpufreq-0"],
        "cpu_khz": [1804800, 0, 12345678901 - 12345678901 % 10],
        "gpu_khz": 587000,
        "battery": {"percent": 87, "charging": False, "celsius": 31.2},
    }


@pytest.mark.parametrize(
    ("files", "khz"),
    [
        ({"sys/class/kgsl/kgsl-3d0/devfreq/cur_freq": "257000000"}, 257000),
        ({"sys/class/devfreq/1c00000.mali/cur_freq": "800000000"}, 800000),
        ({"sys/class/devfreq/soc:qcom,gpubw/cur_freq": "7"}, None),
        ({"sys/class/kgsl/kgsl-3d0/gpuclk": "inf"}, None),
        ({}, None),
    ],
)
def test_clocks_of_gpus(phone, files, khz):
    sensors = json_of(phone(files).request(raw.SENSORS))
    assert sensors.get("gpu_khz") == khz
    assert (sensors["temperatures"], sensors["cpu_khz"]) == ({}, [])
    assert "battery" not in sensors


def test_more_sensors_than_an_answer_has_are_left_out(phone):
    names = [f"{number:03d}" for number in range(800)]
    files = {f"{ZONE}{name}/temp": "40000" for name in names}
    files |= {f"{ZONE}{name}/type": "\x01" * 60 for name in names}
    assert json_of(phone(files).request(raw.SENSORS)) == {}


def test_facts_of_a_phone(phone, driver):
    facts = json_of(phone(PHONE).request(raw.FACTS, u32(0)))
    assert facts["kernel"] == "5.10.1-made-up"
    assert facts["model"] == 'Board "one"\x01'
    assert facts["features"] == "fp asimd"
    assert facts["cpus"] == [
        {"part": "0xd05", "implementer": "0x41", "min_khz": 300000, "max_khz": 1804800},
        {},
        {"part": "0x804", "implementer": "0x51", "max_khz": 2841600},
    ]
    (device,) = facts["opencl"]
    assert (device["name"], device["device_type"]) == ("Fake GPU", "gpu")
    assert device["library"] == str(driver)
    assert str(driver) in facts["opencl_tried"]


def test_facts_without_drivers_and_files(start, tmp_path):
    missing = tmp_path / "missing"
    env = {"TVMFLOW_AGENT_SYS": missing, "TVMFLOW_AGENT_PROC": missing}
    facts = json_of(start(TVMFLOW_OPENCL_LIBRARY=missing, **env).request(raw.FACTS, u32(0)))
    assert (facts["cpus"], facts["opencl"]) == ([], [])
    assert str(missing) in facts["opencl_tried"]
    assert not {"kernel", "features"} & set(facts)


# -- TCP -------------------------------------------------------------------------------------------


@pytest.fixture
def listen(program, driver, tmp_path):
    """Return a function that starts an agent on TCP."""
    started = []

    def listener(*options):
        env = {"TVMFLOW_OPENCL_LIBRARY": driver}
        started.append(Listener(program, tmp_path / "agent", *options, **env))
        return started[-1]

    yield listener
    for each in started:
        each.stop()


@pytest.fixture
def secret_file(tmp_path):
    """Return a file with the secret between white space."""
    path = tmp_path / "secret"
    path.write_bytes(b"\n  " + SECRET + b"\t\n")
    path.chmod(0o600)
    return path


def proof(side, secret, agents, hosts):
    """Return HMAC-SHA256 of both challenges."""
    return hmac.digest(secret, side + agents + hosts, "sha256")


def shake(client, secret):
    """Send the host's part of the handshake; return whether the agent's proof is right."""
    greeting = client.bytes(40)
    assert greeting[:8] == b"tvmflow\1"
    hosts = os.urandom(32)
    client.raw(hosts + proof(b"client", secret, greeting[8:], hosts))
    return client.bytes(32) == proof(b"server", secret, greeting[8:], hosts)


def test_connections_over_tcp(listen):
    listener = listen()
    first, second = listener.connect(), listener.connect()
    assert first.greet(name="one").u32 == 1
    assert second.greet().error[0] == raw.BUSY
    assert is_over(second)
    assert first.put(b"content" * MB).u32 == 0
    assert first.request(raw.FACTS, u32(0)).kind == raw.FACTS | raw.ANSWER
    (connection,) = raw.children(listener.process.pid)
    sessions = raw.children(connection)
    listener.close(0)
    raw.wait_for_end(connection, *sessions)
    third = listener.connect()
    assert third.greet().u32 == 1
    assert third.has(b"content" * MB) == [1]


def test_a_killed_listener_leaves_nothing(listen):
    listener = listen()
    client = listener.connect()
    client.greet()
    assert client.request(raw.FACTS, u32(0)).kind == raw.FACTS | raw.ANSWER
    (connection,) = raw.children(listener.process.pid)
    sessions = raw.children(connection)
    assert len(sessions) == 1
    listener.process.kill()
    raw.wait_for_end(connection, *sessions)
    assert is_over(client)


def test_secrets_are_proven_by_both_sides(listen, secret_file):
    listener = listen("--secret-file", secret_file)
    client = listener.connect()
    assert shake(client, SECRET)
    assert client.greet().u32 == 1


@pytest.mark.parametrize("secret", [b"another secret, as long", SECRET + b"x", b""])
def test_wrong_secrets_are_refused(listen, secret_file, secret):
    listener = listen("--secret-file", secret_file)
    client = listener.connect()
    assert not shake(client, secret)
    assert is_over(client)
    assert "did not prove the secret" in listener.log.read_text()
    assert shake(listener.connect(), SECRET)


def test_the_agents_own_proof_is_no_hosts_proof(listen, secret_file):
    listener = listen("--secret-file", secret_file)
    client = listener.connect()
    greeting = client.bytes(40)
    client.raw(greeting[8:] + proof(b"server", SECRET, greeting[8:], greeting[8:]))
    assert client.bytes(32) == b""


def test_requests_before_the_handshake_are_refused(listen, secret_file):
    client = listen("--secret-file", secret_file).connect()
    assert len(client.bytes(40)) == 40
    client.raw(raw.frame(raw.HELLO, 1, raw.hello()) * 2)
    # The rest of what was sent may reset the connection.
    assert client.bytes(1) == b""


def test_long_secrets(listen, secret_file):
    secret = b"s" * 4096
    secret_file.write_bytes(secret)
    assert shake(listen("--secret-file", secret_file).connect(), secret)


@pytest.mark.parametrize(
    ("content", "mode", "reason"),
    [
        (b"x" * 15, 0o600, "less than 16"),
        (b" " * 40, 0o600, "less than 16"),
        (b"x" * 4097, 0o600, "more than 4096"),
        (b"x" * 16, 0o640, "chmod 600"),
        (None, 0, "regular file"),
    ],
)
def test_secret_files_that_are_refused(program, secret_file, content, mode, reason):
    if content is None:
        secret_file.unlink()
        os.mkfifo(secret_file, 0o600)
    else:
        secret_file.write_bytes(content)
        secret_file.chmod(mode)
    done = _refused(program, secret_file, "--listen", "127.0.0.1:0")
    assert reason in done


@pytest.mark.parametrize("address", ["0.0.0.0:0", "10.0.0.1:0", "126.255.255.255:0", "128.0.0.1:0"])
def test_other_machines_need_a_secret(program, address):
    assert "name a --secret-file" in _refused(program, None, "--listen", address)


def test_a_secret_allows_other_machines(program, secret_file, tmp_path):
    command = [program, "--folder", tmp_path / "agent", "--listen", "0.0.0.0:0"]
    command += ["--secret-file", secret_file]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline().startswith(b"listening at 0.0.0.0:")
        process.kill()


def _refused(program, secret_file, *options):
    more = [] if secret_file is None else ["--secret-file", secret_file]
    command = [program, "--folder", "/nonexistent", *options, *more]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=5)
    assert done.returncode == 2
    return done.stderr


def test_stale_clients_disturb_nobody(listen, secret_file):
    listener = listen("--secret-file", secret_file)
    for stale in range(20):
        listener.connect()
        if stale % 2:
            listener.close(stale)
    client = listener.connect()
    assert shake(client, SECRET)
    assert client.greet().u32 == 1
    # Those that are gone leave no process; those that say nothing get a few seconds.
    ends = time.monotonic() + 3
    while len(raw.children(listener.process.pid)) > 11:
        assert time.monotonic() < ends
        time.sleep(0.01)
    (agent,) = [pid for pid in raw.children(listener.process.pid) if _holds_the_lock(pid)]
    assert client.request(raw.PING).kind == raw.PING | raw.ANSWER
    assert agent


def _holds_the_lock(pid):
    links = (os.readlink(entry.path) for entry in os.scandir(f"/proc/{pid}/fd"))
    return any(link.endswith("/agent/lock") for link in links)
